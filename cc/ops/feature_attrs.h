#ifndef TFEMBED_OPS_FEATURE_ATTRS_H_
#define TFEMBED_OPS_FEATURE_ATTRS_H_

// The attributes of ops on all features of a step: `dims` has one entry for
// each table, all others one for each feature.
#define TFEMBED_FEATURE_ATTRS                                  \
  .Attr("T: int >= 1")                                         \
      .Attr("F: int >= 1")                                     \
      .Attr("Tids: list({int64, string}) >= 1")                \
      .Attr("dims: list(int) >= 1")                            \
      .Attr("kinds: list({'dense', 'ragged', 'sparse'}) >= 1") \
      .Attr("table_ids: list(int) >= 1")                       \
      .Attr("combiners: list({'sum', 'mean', 'sqrtn'}) >= 1")  \
      .Attr("max_sequence_lengths: list(int) >= 1")            \
      .Attr("validate: list(bool) >= 1")                       \
      .Attr("feature_names: list(string) = []")

#endif  // TFEMBED_OPS_FEATURE_ATTRS_H_
