#ifndef TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_
#define TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_

#include <variant>

#include "cc/core/optimizers/adadelta.h"
#include "cc/core/optimizers/adagrad.h"
#include "cc/core/optimizers/adagrad_momentum.h"
#include "cc/core/optimizers/adam.h"
#include "cc/core/optimizers/centered_rms_prop.h"
#include "cc/core/optimizers/ftrl.h"
#include "cc/core/optimizers/lion.h"
#include "cc/core/optimizers/momentum.h"
#include "cc/core/optimizers/proximal_adagrad.h"
#include "cc/core/optimizers/rms_prop.h"
#include "cc/core/optimizers/row_wise_adagrad.h"
#include "cc/core/optimizers/sgd.h"
#include "cc/core/optimizers/yogi.h"

namespace tfembed {

// A rule's own parameters, for those who do not apply it through UpdateRule but
// compile its Step() themselves.
using AnyFormula =
    std::variant<Sgd, Adagrad, AdagradMomentum, Adam, Ftrl, Momentum, RmsProp,
                 CenteredRmsProp, ProximalAdagrad, Adadelta, Lion, Yogi,
                 RowWiseAdagrad>;

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_
