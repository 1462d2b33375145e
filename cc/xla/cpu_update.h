#ifndef TFEMBED_XLA_CPU_UPDATE_H_
#define TFEMBED_XLA_CPU_UPDATE_H_

#include <string>

#include "cc/xla/exchange.h"

namespace tfembed {

// The update of a single replica on a CPU as one call into cc/core's loops,
// which change the rows in place. XLA's own sorts and scatters go row by row
// there. For rules that do not move all rows. `rule_text` is that of
// training.rule.
UpdatedRows UpdateOnCpu(const RowTraining& training,
                        const std::string& rule_text, xla::XlaOp learning_rate,
                        xla::XlaOp ids, xla::XlaOp gradients,
                        TrainedRows state);

}  // namespace tfembed

#endif  // TFEMBED_XLA_CPU_UPDATE_H_
