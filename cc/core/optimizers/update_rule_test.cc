#include "cc/core/optimizers/update_rule.h"

#include <cmath>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/testing/kernels_test_base.h"
#include "cc/core/testing/random_bags.h"
#include "cc/core/testing/rule_oracle.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr float kLearningRate = 0.05f;

const char* const kRules[] = {
    "sgd",
    "adagrad",
    "adagrad initial_accumulator_value=0.5 epsilon=0.01",
    "adagrad initial_accumulator_value=0 epsilon=1e-7",
    "adagrad_momentum",
    "adagrad_momentum momentum=0.9 epsilon=0.001",
    "adagrad_momentum momentum=0.5 use_nesterov=1 beta2=0.75",
    "adagrad_momentum exponent=3 momentum=0.1",
    "adagrad_momentum momentum=0.1 beta2=0.9999",
    "adam",
    "adam beta_1=0.5 beta_2=0.25 epsilon=0.1",
    "adam sum_inside_sqrt=0 epsilon=0.01 lazy_adam=1",
    "adam beta_1=0.999 beta_2=0.99999",
    "ftrl",
    "ftrl l1_regularization_strength=0.5 l2_regularization_strength=0.25",
    "ftrl beta=0.5 initial_accumulator_value=1 learning_rate_power=-0.75",
    "ftrl multiply_linear_by_learning_rate=1 beta=0.25 "
    "l1_regularization_strength=2 l2_regularization_strength=0.5",
    "ftrl learning_rate_power=0",
    "momentum",
    "momentum momentum=0.5 use_nesterov=1",
    "rms_prop",
    "rms_prop rho=0.5 momentum=0.9 epsilon=0.01",
    "rms_prop rho=0.9999",
    "centered_rms_prop",
    "centered_rms_prop rho=0.75 momentum=0.5 epsilon=0.01",
    "proximal_adagrad",
    "proximal_adagrad l1_regularization_strength=4 initial_accumulator_value=2 "
    "l2_regularization_strength=0.5",
    "adadelta",
    "adadelta rho=0.5 epsilon=0.01",
    "lion",
    "lion beta_1=0.5 beta_2=0.75",
    "yogi",
    "yogi beta_1=0.5 beta_2=0.25 epsilon=0.1 l1_regularization_strength=0.5 "
    "l2_regularization_strength=0.25 initial_accumulator_value=0.125",
};

const char* const kCommon[] = {
    "",
    "clip_gradient_min=-0.25 clip_gradient_max=0.125",
    "clip_weight_min=-0.5 clip_weight_max=0.25",
    "weight_decay=0.125",
    "weight_decay=0.125 weight_decay_times_learning_rate=1",
    "accumulate=0",
};

// Rules that a suite of their own compares with their formula.
const char* const kRowWiseRules[] = {"row_wise_adagrad"};

std::unique_ptr<UpdateRule> Parse(const std::string& text) {
  return UpdateRule::Parse(text).value();
}

// n rows of a rule, and as many gradients.
class Rows {
 public:
  Rows(const UpdateRule& rule, int64_t n, int64_t dim)
      : rule_(rule),
        n_(n),
        dim_(dim),
        gradients(RandomFloats(n * dim, 1)),
        values(RandomFloats(n * dim, 2)) {
    for (const float initial : rule.slot_initial_values()) {
      slots.emplace_back(n * dim, initial);
    }
  }

  void Apply() {
    std::vector<MutableRow> rows(n_);
    for (int64_t i = 0; i < n_; ++i) {
      rows[i].value = values.data() + i * dim_;
      for (size_t s = 0; s < slots.size(); ++s) {
        rows[i].slots[s] = slots[s].data() + i * dim_;
      }
    }
    rule_.Apply(rows.data(), gradients.data(), n_, dim_, kLearningRate);
  }

 private:
  const UpdateRule& rule_;
  const int64_t n_;
  const int64_t dim_;

 public:
  std::vector<float> gradients;
  std::vector<float> values;
  std::vector<std::vector<float>> slots;
};

class UpdateRuleTest : public KernelsTestBase<
                           std::tuple<const char*, const char*, const char*>> {
 protected:
  std::string Text() const {
    return absl::StrCat(std::get<1>(GetParam()), " ", std::get<2>(GetParam()));
  }
};

// Compares one step with the oracle, element by element.
void ExpectStep(const std::string& text, Rows* rows) {
  const std::vector<float> old_values = rows->values;
  const std::vector<std::vector<float>> old_slots = rows->slots;
  rows->Apply();
  for (size_t i = 0; i < old_values.size(); ++i) {
    std::vector<double> slots;
    for (const auto& slot : old_slots) slots.push_back(slot[i]);
    const ElementState expected = StepElement(
        text, kLearningRate, rows->gradients[i], old_values[i], slots);
    ASSERT_TRUE(IsNear(rows->values[i], expected.value)) << "element " << i;
    for (size_t s = 0; s < slots.size(); ++s) {
      ASSERT_TRUE(IsNear(rows->slots[s][i], expected.slots[s]))
          << "element " << i << " of slot " << s;
    }
  }
}

TEST_P(UpdateRuleTest, FollowsItsFormulaForAnyWidth) {
  const auto rule = Parse(Text());
  for (const int64_t dim : {1, 3, 8, 16, 17, 64, 100, 128}) {
    Rows rows(*rule, 3, dim);
    ExpectStep(Text(), &rows);
    if (HasFatalFailure()) return;
    rows.gradients = RandomFloats(3 * dim, 5);
    ExpectStep(Text(), &rows);
    if (HasFatalFailure()) return;
  }
}

TEST_P(UpdateRuleTest, GivesTheBitsOfTheBaseline) {
  const auto rule = Parse(Text());
  Rows rows(*rule, 4, 100), baseline(*rule, 4, 100);
  rows.Apply();
  SetActiveKernels(*FindKernels("baseline"));
  baseline.Apply();
  EXPECT_EQ(rows.values, baseline.values);
  EXPECT_EQ(rows.slots, baseline.slots);
}

TEST_P(UpdateRuleTest, StaysFiniteWhereTheGradientIsZero) {
  const auto rule = Parse(Text());
  Rows rows(*rule, 1, 20);
  rows.gradients.assign(20, 0);
  rows.Apply();
  for (const float value : rows.values) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(UpdateRuleTest, PassesANaNOn) {
  const auto rule = Parse(Text());
  Rows rows(*rule, 1, 20);
  rows.gradients[19] = std::nanf("");
  rows.Apply();
  EXPECT_TRUE(std::isnan(rows.values[19]));
  EXPECT_FALSE(std::isnan(rows.values[18]));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, UpdateRuleTest,
    testing::Combine(testing::Values("baseline", "avx2", "avx512"),
                     testing::ValuesIn(kRules), testing::ValuesIn(kCommon)));

TEST(UpdateRuleParseTest, KnowsSlotsOfEveryRule) {
  const auto slots = [](const char* text) { return Parse(text)->slot_names(); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(slots("sgd"), Names({}));
  EXPECT_EQ(slots("adagrad"), Names({"accumulators"}));
  EXPECT_EQ(slots("adagrad_momentum"), Names({"accumulators", "momenta"}));
  EXPECT_EQ(slots("adam"), Names({"momenta", "velocities"}));
  EXPECT_EQ(slots("ftrl"), Names({"accumulators", "linears"}));
  EXPECT_EQ(slots("momentum"), Names({"momenta"}));
  EXPECT_EQ(slots("rms_prop"), Names({"ms", "mom"}));
  EXPECT_EQ(slots("centered_rms_prop"), Names({"ms", "mom", "mg"}));
  EXPECT_EQ(slots("proximal_adagrad"), Names({"accumulators"}));
  EXPECT_EQ(slots("adadelta"), Names({"accumulators", "updates"}));
  EXPECT_EQ(slots("lion"), Names({"momenta"}));
  EXPECT_EQ(slots("yogi"), Names({"v", "m"}));
  EXPECT_EQ(Parse("yogi")->slot_initial_values(),
            std::vector<float>({1e-6f, 0}));
  EXPECT_EQ(Parse("ftrl initial_accumulator_value=2")->slot_initial_values(),
            std::vector<float>({2, 0}));
  EXPECT_EQ(Parse("adagrad")->slot_initial_values(),
            std::vector<float>({0.1f}));
}

TEST(UpdateRuleParseTest, FtrlTakesALearningRateOfZeroOnlyInItsLinears) {
  const auto divides = UpdateRule::Parse("ftrl");
  EXPECT_TRUE((*divides)->CheckLearningRate(0.1f).ok());
  const absl::Status status = (*divides)->CheckLearningRate(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "must be finite and above 0, since ftrl divides by it; got 0.");
  const auto multiplies =
      UpdateRule::Parse("ftrl multiply_linear_by_learning_rate=1");
  EXPECT_TRUE((*multiplies)->CheckLearningRate(0).ok());
  EXPECT_FALSE((*multiplies)->CheckLearningRate(NAN).ok());
}

TEST(UpdateRuleParseTest, KnowsWhichRulesMoveAllRows) {
  EXPECT_FALSE(Parse("adam")->moves_all_rows());
  EXPECT_FALSE(Parse("adam lazy_adam=1")->moves_all_rows());
  EXPECT_TRUE(Parse("adam lazy_adam=0")->moves_all_rows());
  EXPECT_TRUE(Parse("lion lazy_lion=0")->moves_all_rows());
}

TEST(UpdateRuleParseTest, KnowsTheSlotsOfOneFloat) {
  EXPECT_EQ(Parse("row_wise_adagrad")->row_wise_slots(), 1u);
  EXPECT_EQ(Parse("adagrad")->row_wise_slots(), 0u);
}

TEST(UpdateRuleParseTest, KeepsNameAndAccumulation) {
  EXPECT_EQ(Parse("  adam   accumulate=0 ")->name(), "adam");
  EXPECT_FALSE(Parse("adam accumulate=0")->accumulate());
  EXPECT_TRUE(Parse("adam")->accumulate());
}

struct BadText {
  const char* text;
  const char* message;
};

class UpdateRuleErrorTest : public testing::TestWithParam<BadText> {};

TEST_P(UpdateRuleErrorTest, IsInvalidArgumentAndSaysWhatIsWrong) {
  const auto rule = UpdateRule::Parse(GetParam().text);
  ASSERT_FALSE(rule.ok());
  EXPECT_EQ(rule.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(rule.status().message(), GetParam().message))
      << rule.status();
}

INSTANTIATE_TEST_SUITE_P(
    Texts, UpdateRuleErrorTest,
    testing::Values(
        BadText{"", "Unknown update rule ``; the rules are sgd, adagrad"},
        BadText{"lamb", "Unknown update rule `lamb`"},
        BadText{"sgd momentum=1",
                "sgd has no parameter `momentum`; it knows "
                "clip_gradient_min, clip_gradient_max"},
        BadText{"adam beta_1", "the word `beta_1`"},
        BadText{"adam =1", "the word `=1`"},
        BadText{"adam beta_1=0.5 beta_1=0.5", "`beta_1` is given twice"},
        BadText{"adam beta_1=x", "`beta_1` must be a number; got `x`"},
        BadText{"adam beta_1=nan", "`beta_1` must be a number; got `nan`"},
        BadText{"adam beta_1=1", "`beta_1` must be in [0, 1); got `1`"},
        BadText{"adam beta_2=-1", "`beta_2` must be in [0, 1); got `-1`"},
        BadText{"adam epsilon=0", "`epsilon` must be finite and positive"},
        BadText{"adam lazy_adam=0 accumulate=0",
                "`accumulate` must be 1 where all rows move in each step"},
        BadText{"row_wise_adagrad epsilon=0", "`epsilon` must be finite and"},
        BadText{"row_wise_adagrad initial_accumulator_value=-1", "got `-1`"},
        BadText{"adam sum_inside_sqrt=2", "must be 0 or 1; got `2`"},
        BadText{"adagrad initial_accumulator_value=0",
                "`initial_accumulator_value` must be finite and positive"},
        BadText{"adagrad epsilon=-1", "`epsilon` must be finite"},
        BadText{"adagrad_momentum exponent=0", "`exponent` must be finite"},
        BadText{"adagrad_momentum beta2=2", "`beta2` must be in [0, 1]"},
        BadText{"adagrad_momentum epsilon=0", "`epsilon` must be finite"},
        BadText{"adagrad_momentum momentum=inf", "`momentum` must be finite"},
        BadText{"ftrl learning_rate_power=1", "finite and not positive"},
        BadText{"ftrl l1_regularization_strength=-1", "`l1_regularization"},
        BadText{"ftrl l2_regularization_strength=-1", "`l2_regularization"},
        BadText{"ftrl beta=-1", "`beta` must be finite and not negative"},
        BadText{"ftrl initial_accumulator_value=0", "finite and positive"},
        BadText{"momentum momentum=inf", "`momentum` must be finite"},
        BadText{"rms_prop rho=1", "`rho` must be in [0, 1); got `1`"},
        BadText{"rms_prop epsilon=0", "`epsilon` must be finite and positive"},
        BadText{"centered_rms_prop rho=-1", "`rho` must be in [0, 1)"},
        BadText{"proximal_adagrad initial_accumulator_value=0",
                "`initial_accumulator_value` must be finite and positive"},
        BadText{"proximal_adagrad l1_regularization_strength=-1",
                "must be finite and not negative; got `-1`"},
        BadText{"adadelta epsilon=inf", "`epsilon` must be finite"},
        BadText{"lion beta_2=1", "`beta_2` must be in [0, 1); got `1`"},
        BadText{"yogi initial_accumulator_value=-1", "not negative; got `-1`"},
        BadText{"sgd clip_gradient_min=1 clip_gradient_max=0",
                "`clip_gradient_min` must be at most clip_gradient_max"},
        BadText{"sgd clip_weight_max=-inf clip_weight_min=0",
                "`clip_weight_min` must be at most clip_weight_max"},
        BadText{"sgd weight_decay=inf", "`weight_decay` must be finite"},
        BadText{"sgd accumulate=yes", "`accumulate` must be 0 or 1"}));

TEST(UpdateRuleList, EveryRuleIsComparedWithItsFormula) {
  std::set<std::string> compared(std::begin(kRowWiseRules),
                                 std::end(kRowWiseRules));
  for (const char* rule : kRules) {
    compared.insert(std::string(Parse(rule)->name()));
  }
  const std::set<std::string> listed = {
#define TFEMBED_RULE(name, Type) #name,
#include "cc/core/optimizers/rules.inc"
  };
  EXPECT_EQ(compared, listed);
}

}  // namespace
}  // namespace tfembed
