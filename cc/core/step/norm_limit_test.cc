// Gradients that are scaled down to a norm, beside the same ones scaled before.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/updated_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kRows = 40;

class NormLimitTest : public UpdateTest {
 protected:
  // Two features' bags, of ids that repeat.
  void Fill(UpdatedTable* table, uint32_t seed) const {
    RandomBagsOptions options;
    options.num_bags = 50;
    options.num_rows = kRows;
    options.combiner = Combiner::kSum;
    table->features.Add(options, seed);
    options.has_weights = true;
    table->features.Add(options, seed + 2);
  }

  static void Run(const std::vector<UpdatedTable*>& tables,
                  const std::vector<NormLimit>& limits, int threads = 2) {
    ThreadExecutor executor(threads);
    ASSERT_TRUE(
        RunStep(tables, &executor, NonFinite::kSkip, nullptr, limits).ok());
  }

  // The square of the norm of the finite sums.
  static double Square(const UpdatedTable& table) {
    double square = 0;
    for (const auto& [id, sum] : table.features.Sums()) {
      double of_row = 0;
      for (const Expected& g : sum) of_row += g.value * g.value;
      if (std::isfinite(of_row)) square += of_row;
    }
    return square;
  }

  static void Scale(UpdatedTable* table, double factor) {
    for (int64_t f = 0; f < 2; ++f) {
      for (float& g : table->features.gradients(f)) g *= factor;
    }
  }

  static void ExpectSame(const UpdatedTable& a, const UpdatedTable& b) {
    const auto rows = a.Rows(kRows), expected = b.Rows(kRows);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t c = 0; c < a.dim; ++c) {
        ASSERT_NEAR(rows[i][c], expected[i][c],
                    1e-5 * (1 + std::fabs(expected[i][c])))
            << "row " << i;
      }
    }
  }
};

TEST_P(NormLimitTest, ScalesTheTablesOfALimitByOneFactor) {
  for (const int64_t dim : {1, 17, 64}) {
    UpdatedTable a(is_static(), dim, kRows, "adagrad"),
        b(is_static(), dim, kRows, "sgd"), free(is_static(), dim, kRows, "sgd");
    UpdatedTable a2(is_static(), dim, kRows, "adagrad"),
        b2(is_static(), dim, kRows, "sgd"),
        free2(is_static(), dim, kRows, "sgd");
    for (UpdatedTable* table : {&a, &a2}) Fill(table, 1);
    for (UpdatedTable* table : {&b, &b2}) Fill(table, 5);
    for (UpdatedTable* table : {&free, &free2}) Fill(table, 9);
    const double norm = std::sqrt(Square(a) + Square(b));
    ASSERT_GT(norm, 0.5);
    for (UpdatedTable* table : {&a2, &b2}) Scale(table, 0.5 / norm);
    Run({&a, &free, &b}, {{{0, 2}, 0.5f}});
    Run({&a2, &free2, &b2}, {});
    ExpectSame(a, a2);
    ExpectSame(b, b2);
    EXPECT_EQ(free.Rows(kRows), free2.Rows(kRows));
    if (HasFatalFailure()) return;
  }
}

TEST_P(NormLimitTest, LeavesGradientsWithinTheLimitBitForBit) {
  UpdatedTable limited(is_static(), 17, kRows, "adagrad"),
      plain(is_static(), 17, kRows, "adagrad");
  for (UpdatedTable* table : {&limited, &plain}) Fill(table, 1);
  Run({&limited}, {{{0}, 1e6f}});
  Run({&plain}, {});
  EXPECT_EQ(limited.Rows(kRows), plain.Rows(kRows));
}

TEST_P(NormLimitTest, GivesTheSameBitsWhateverTheThreads) {
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    UpdatedTable table(is_static(), 16, 20000, "sgd");
    RandomBagsOptions options;
    options.num_bags = 5000;
    options.num_rows = 20000;
    table.features.Add(options, 1);
    Run({&table}, {{{0}, 0.25f}}, threads);
    const auto rows = table.Rows(20000);
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << threads;
  }
}

TEST_P(NormLimitTest, LeavesSumsThatAreNotFiniteOutOfTheNorm) {
  UpdatedTable limited(is_static(), 17, kRows, "sgd"),
      plain(is_static(), 17, kRows, "sgd");
  for (UpdatedTable* table : {&limited, &plain}) {
    Fill(table, 1);
    table->features.gradients(0)[16] = std::nanf("");
  }
  const double norm = std::sqrt(Square(plain));
  Scale(&plain, 0.5 / norm);
  Run({&limited}, {{{0}, 0.5f}});
  Run({&plain}, {});
  ExpectSame(limited, plain);
}

TEST_P(NormLimitTest, TakesGradientsWhoseSquaresAreNoFloats) {
  UpdatedTable limited(is_static(), 17, kRows, "sgd"),
      plain(is_static(), 17, kRows, "sgd");
  for (UpdatedTable* table : {&limited, &plain}) Fill(table, 1);
  const double norm = std::sqrt(Square(plain));
  Scale(&limited, 1e25);
  Scale(&plain, 0.5 / norm);
  Run({&limited}, {{{0}, 0.5f}});
  Run({&plain}, {});
  ExpectSame(limited, plain);
}

INSTANTIATE_TEST_SUITE_P(Targets, NormLimitTest, UpdateTargets(), NameOfTarget);

}  // namespace
}  // namespace tfembed
