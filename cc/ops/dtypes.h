#ifndef TFEMBED_OPS_DTYPES_H_
#define TFEMBED_OPS_DTYPES_H_

// The dtypes of keys and values; which of them go together, tfembed/tables
// says.
#define TFEMBED_KEY_DTYPES "{int64, int32, string}"
#define TFEMBED_VALUE_DTYPES \
  "{float, half, bfloat16, double, int8, int32, int64, bool}"
#define TFEMBED_KEYS_ATTR "Tkey: " TFEMBED_KEY_DTYPES
#define TFEMBED_VALUES_ATTR "Tvalue: " TFEMBED_VALUE_DTYPES

#endif  // TFEMBED_OPS_DTYPES_H_
