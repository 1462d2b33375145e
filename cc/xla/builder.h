#ifndef TFEMBED_XLA_BUILDER_H_
#define TFEMBED_XLA_BUILDER_H_

// Includes XLA's program builder, which TensorFlow has under xla/hlo since
// 2.17.
#if __has_include("xla/hlo/builder/xla_builder.h")
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/comparators.h"
#include "xla/hlo/builder/lib/loops.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#else
#include "xla/client/lib/arithmetic.h"
#include "xla/client/lib/comparators.h"
#include "xla/client/lib/loops.h"
#include "xla/client/xla_builder.h"
#include "xla/client/xla_computation.h"
#endif

#endif  // TFEMBED_XLA_BUILDER_H_
