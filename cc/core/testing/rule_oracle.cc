#include "cc/core/testing/rule_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

namespace tfembed {
namespace {

// A rule's text, read without a check.
class Parameters {
 public:
  explicit Parameters(const std::string& text) {
    std::istringstream words(text);
    words >> name;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      values_[word.substr(0, equals)] = std::stod(word.substr(equals + 1));
    }
  }

  double Get(const std::string& parameter, double otherwise) const {
    // The rules hold floats.
    return static_cast<float>(GetDouble(parameter, otherwise));
  }

  // Reads a number of which rules hold the float, and the float of the rest
  // to 1.
  double GetDouble(const std::string& parameter, double otherwise) const {
    const auto found = values_.find(parameter);
    return found == values_.end() ? otherwise : found->second;
  }

  std::string name;

 private:
  std::map<std::string, double> values_;
};

Expected Terms(std::initializer_list<double> terms) {
  Expected sum;
  for (const double term : terms) sum.Add(term);
  return sum;
}

ElementState Adagrad(const Parameters& p, double lr, double g, double w,
                     const std::vector<double>& slots) {
  const double a = slots[0] + g * g;
  return {Terms({w, -lr * g / std::sqrt(a + p.Get("epsilon", 0))}),
          {Terms({slots[0], g * g})}};
}

ElementState AdagradMomentum(const Parameters& p, double lr, double g, double w,
                             const std::vector<double>& slots) {
  const double beta2 = p.GetDouble("beta2", 1);
  const double momentum = p.Get("momentum", 0);
  const double a =
      beta2 == 1 ? slots[0] + g * g : beta2 * slots[0] + (1 - beta2) * g * g;
  const double scaled =
      g / std::pow(a + p.Get("epsilon", 1e-10), 1 / p.Get("exponent", 2));
  const double m = momentum * slots[1] + scaled;
  const Expected value =
      p.Get("use_nesterov", 0) != 0
          ? Terms({w, -lr * momentum * momentum * slots[1],
                   -lr * momentum * scaled, -lr * scaled})
          : Terms({w, -lr * momentum * slots[1], -lr * scaled});
  return {value, {Terms({a}), Terms({m - scaled, scaled})}};
}

ElementState Adam(const Parameters& p, double lr, double g, double w,
                  const std::vector<double>& slots) {
  const double b1 = p.GetDouble("beta_1", 0.9),
               b2 = p.GetDouble("beta_2", 0.999);
  const double epsilon = p.Get("epsilon", 1e-7);
  const Expected m = Terms({b1 * slots[0], (1 - b1) * g});
  const Expected v = Terms({b2 * slots[1], (1 - b2) * g * g});
  const double divisor = p.Get("sum_inside_sqrt", 1) != 0
                             ? std::sqrt(v.value + epsilon * epsilon)
                             : std::sqrt(v.value) + epsilon;
  return {
      Terms({w, -lr * b1 * slots[0] / divisor, -lr * (1 - b1) * g / divisor}),
      {m, v}};
}

ElementState Ftrl(const Parameters& p, double lr, double g, double w,
                  const std::vector<double>& slots) {
  const double power = -p.Get("learning_rate_power", -0.5);
  const double l1 = p.Get("l1_regularization_strength", 0);
  const double l2 = p.Get("l2_regularization_strength", 0);
  const double beta = p.Get("beta", 0);
  const double a = slots[0] + g * g;
  const double old_root = std::pow(slots[0], power);
  const double root = std::pow(a, power);
  const bool multiply = p.Get("multiply_linear_by_learning_rate", 0) != 0;
  const double by = multiply ? 1 : 1 / lr;
  const Expected linear = Terms(
      {slots[1], (multiply ? lr : 1) * g, -root * by * w, old_root * by * w});
  const double bound = multiply ? lr * l1 : l1;
  const double divisor =
      multiply ? root + 2 * lr * l2 + beta : (root + beta) / lr + 2 * l2;
  Expected value;
  value.Add(std::clamp(linear.value, -bound, bound));
  value.Add(-linear.value);
  value.terms += linear.terms;
  value.Multiply(1 / divisor);
  return {value, {Terms({slots[0], g * g}), linear}};
}

ElementState Momentum(const Parameters& p, double lr, double g, double w,
                      const std::vector<double>& slots) {
  const double momentum = p.Get("momentum", 0.9);
  const double kept = momentum * slots[0];
  if (p.Get("use_nesterov", 0) != 0) {
    return {Terms({w, -lr * g, -lr * momentum * kept, -lr * momentum * g}),
            {Terms({kept, g})}};
  }
  return {Terms({w, -lr * kept, -lr * g}), {Terms({kept, g})}};
}

ElementState RmsProp(const Parameters& p, double lr, double g, double w,
                     const std::vector<double>& slots) {
  const bool is_centered = p.name == "centered_rms_prop";
  const double rho = p.GetDouble("rho", 0.9);
  const Expected square = Terms({rho * slots[0], (1 - rho) * g * g});
  Expected mean;
  if (is_centered) mean = Terms({rho * slots[2], (1 - rho) * g});
  const double variance = square.value - mean.value * mean.value;
  const double step = lr * g / std::sqrt(variance + p.Get("epsilon", 1e-10));
  const double kept = p.Get("momentum", 0) * slots[1];
  ElementState state = {Terms({w, -kept, -step}),
                        {square, Terms({kept, step})}};
  if (is_centered) state.slots.push_back(mean);
  return state;
}

// The value w - step after the proximal step of l1 and l2.
Expected Proximal(const Parameters& p, double rate, double w, double step) {
  Expected moved = Terms({w, -step});
  const double l1 = rate * p.Get("l1_regularization_strength", 0);
  moved.value =
      std::copysign(std::max(std::fabs(moved.value) - l1, 0.0), moved.value);
  moved.terms += l1;
  moved.Multiply(1 / (1 + rate * p.Get("l2_regularization_strength", 0)));
  return moved;
}

ElementState ProximalAdagrad(const Parameters& p, double lr, double g, double w,
                             const std::vector<double>& slots) {
  const double rate = lr / std::sqrt(slots[0] + g * g);
  return {Proximal(p, rate, w, rate * g), {Terms({slots[0], g * g})}};
}

ElementState Adadelta(const Parameters& p, double lr, double g, double w,
                      const std::vector<double>& slots) {
  const double rho = p.GetDouble("rho", 0.95), epsilon = p.Get("epsilon", 1e-7);
  const Expected a = Terms({rho * slots[0], (1 - rho) * g * g});
  const double delta =
      g * std::sqrt((slots[1] + epsilon) / (a.value + epsilon));
  return {Terms({w, -lr * delta}),
          {a, Terms({rho * slots[1], (1 - rho) * delta * delta})}};
}

double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

ElementState Lion(const Parameters& p, double lr, double g, double w,
                  const std::vector<double>& slots) {
  const double b1 = p.GetDouble("beta_1", 0.9),
               b2 = p.GetDouble("beta_2", 0.99);
  return {Terms({w, -lr * Sign(b1 * slots[0] + (1 - b1) * g)}),
          {Terms({b2 * slots[0], (1 - b2) * g})}};
}

ElementState Yogi(const Parameters& p, double lr, double g, double w,
                  const std::vector<double>& slots) {
  const double b1 = p.GetDouble("beta_1", 0.9),
               b2 = p.GetDouble("beta_2", 0.999);
  const Expected m = Terms({b1 * slots[1], (1 - b1) * g});
  const Expected v =
      Terms({slots[0], -(1 - b2) * Sign(slots[0] - g * g) * g * g});
  const double rate = lr / (std::sqrt(v.value) + p.Get("epsilon", 1e-3));
  Expected value = Proximal(p, rate, w, rate * m.value);
  value.terms += rate * m.terms;
  return {value, {v, m}};
}

ElementState Step(const Parameters& p, double lr, double g, double w,
                  const std::vector<double>& slots) {
  if (p.name == "adagrad") return Adagrad(p, lr, g, w, slots);
  if (p.name == "adagrad_momentum") return AdagradMomentum(p, lr, g, w, slots);
  if (p.name == "adam") return Adam(p, lr, g, w, slots);
  if (p.name == "ftrl") return Ftrl(p, lr, g, w, slots);
  if (p.name == "momentum") return Momentum(p, lr, g, w, slots);
  if (p.name == "rms_prop") return RmsProp(p, lr, g, w, slots);
  if (p.name == "centered_rms_prop") return RmsProp(p, lr, g, w, slots);
  if (p.name == "proximal_adagrad") return ProximalAdagrad(p, lr, g, w, slots);
  if (p.name == "adadelta") return Adadelta(p, lr, g, w, slots);
  if (p.name == "lion") return Lion(p, lr, g, w, slots);
  if (p.name == "yogi") return Yogi(p, lr, g, w, slots);
  return {Terms({w, -lr * g}), {}};
}

}  // namespace

ElementState StepElement(const std::string& rule_text, double learning_rate,
                         double gradient, double value,
                         const std::vector<double>& slots) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Parameters p(rule_text);
  const double decay =
      p.Get("weight_decay", 0) *
      (p.Get("weight_decay_times_learning_rate", 0) != 0 ? learning_rate : 1);
  ElementState result =
      Step(p, learning_rate,
           std::clamp(gradient, p.Get("clip_gradient_min", -kInfinity),
                      p.Get("clip_gradient_max", kInfinity)),
           value - decay * value, slots);
  result.value.value =
      std::clamp(result.value.value, p.Get("clip_weight_min", -kInfinity),
                 p.Get("clip_weight_max", kInfinity));
  return result;
}

}  // namespace tfembed
