#ifndef TFEMBED_CORE_OPTIMIZERS_COMMON_PARAMETERS_H_
#define TFEMBED_CORE_OPTIMIZERS_COMMON_PARAMETERS_H_

namespace tfembed {

// The parameters that all update rules share; interface.h says what each means.
// Plain data: files of every instruction set include this header.
struct CommonParameters {
  float clip_gradient_min = -__builtin_inff();
  float clip_gradient_max = __builtin_inff();
  float clip_weight_min = -__builtin_inff();
  float clip_weight_max = __builtin_inff();
  float weight_decay = 0;
  bool weight_decay_times_learning_rate = false;
  bool accumulate = true;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_COMMON_PARAMETERS_H_
