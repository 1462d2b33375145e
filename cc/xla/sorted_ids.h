#ifndef TFEMBED_XLA_SORTED_IDS_H_
#define TFEMBED_XLA_SORTED_IDS_H_

#include <cstdint>

#include "cc/xla/builder.h"

namespace tfembed {

// Ids [n] of a program in the order of their keys. A key is owner * shard_rows
// + row, of an id the owner is id % replicas and the row id / replicas; ids of
// no row have kNone. All int32 [n].
struct SortedIds {
  xla::XlaOp keys;      // Ascending, kNone last.
  xla::XlaOp order;     // keys[i] is that of ids[order[i]].
  xla::XlaOp distinct;  // Each key once, ascending, then kNone.
  xla::XlaOp places;    // Of ids[i] in `distinct`; kNone for ids of no row.
};

// The keys of `ids`, in their order.
xla::XlaOp KeysOf(xla::XlaOp ids, int64_t replicas, int64_t shard_rows);

SortedIds SortKeys(xla::XlaOp keys);

}  // namespace tfembed

#endif  // TFEMBED_XLA_SORTED_IDS_H_
