// Kernels of the ops on rows that others own. A worker packs what it needs of
// each owner into one message, and each owner serves or trains what a message
// asks for, by the lookups and updates of its own tables.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/step/packed_request.h"
#include "cc/core/step/pooled_lookup.h"
#include "cc/core/step/received_rows.h"
#include "cc/core/step/row_request.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/lookup_kernel.h"
#include "cc/kernels/update_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// The messages of a list input, at addresses where numbers may be read.
class Messages {
 public:
  absl::Status Read(OpKernelContext* context, const char* name) {
    OpInputList list;
    TF_RETURN_IF_ERROR(context->input_list(name, &list));
    for (const Tensor& message : list) {
      tensors_.push_back(message.IsAligned()
                             ? message
                             : tensorflow::tensor::DeepCopy(message));
    }
    return absl::OkStatus();
  }

  int size() const { return tensors_.size(); }
  absl::Span<const char> operator[](int i) const {
    return {static_cast<const char*>(tensors_[i].data()),
            static_cast<size_t>(tensors_[i].TotalBytes())};
  }

  // Parses requests.
  absl::Status Parse(std::vector<ReceivedRequest>* requests) const {
    for (int i = 0; i < size(); ++i) {
      absl::StatusOr<ReceivedRequest> request =
          ReceivedRequest::Parse((*this)[i]);
      if (!request.ok()) return request.status();
      requests->push_back(*std::move(request));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<Tensor> tensors_;
};

// The bytes of a new message, output `index`.
absl::Status AllocateMessage(OpKernelContext* context, int index, int64_t bytes,
                             char** message) {
  Tensor* output;
  TF_RETURN_IF_ERROR(
      AllocateRows(context, index, TensorShape({bytes}), &output));
  *message = static_cast<char*>(output->data());
  return absl::OkStatus();
}

// Room for rows or sums that answer `request`, output `index`.
absl::Status AllocateAnswer(OpKernelContext* context, int index,
                            MessageKind kind, const ReceivedRequest& request,
                            char** rows) {
  const int64_t bytes = request.RowBytes();
  char* message;
  TF_RETURN_IF_ERROR(
      AllocateMessage(context, index, kMessageHeader + bytes, &message));
  PackHeader(kind, request.numbers(), bytes, message);
  *rows = message + kMessageHeader;
  return absl::OkStatus();
}

// Sends `error` to all owners, where the op has a sender; else returns it.
absl::Status SendError(OpKernelContext* context, const std::string& sender,
                       int num_owners, MessageKind kind,
                       const absl::Status& error) {
  if (error.ok() || sender.empty()) return error;
  const std::vector<char> bytes = PackError(
      kind,
      absl::Status(error.code(), absl::StrCat(sender, ": ", error.message())));
  for (int o = 0; o < num_owners; ++o) {
    char* message;
    TF_RETURN_IF_ERROR(AllocateMessage(context, o, bytes.size(), &message));
    std::copy(bytes.begin(), bytes.end(), message);
  }
  return absl::OkStatus();
}

// Who owns the rows of a worker's tables, from the attributes.
class TableOwners {
 public:
  // A shard of a table, and which part of its owner's request it is.
  struct Part {
    int table;
    int shard;
    int owner;
    int index;
  };

  absl::Status Read(OpKernelConstruction* construction, int num_tables) {
    std::vector<int32_t> num_shards, owners;
    TF_RETURN_IF_ERROR(construction->GetAttr("P", &num_owners_));
    TF_RETURN_IF_ERROR(construction->GetAttr("num_shards", &num_shards));
    TF_RETURN_IF_ERROR(construction->GetAttr("owners", &owners));
    TF_RETURN_IF_ERROR(construction->GetAttr("num_rows", &num_rows_));
    int64_t total = 0;
    for (int32_t shards : num_shards) total += std::max(shards, 0);
    const bool is_known = std::all_of(owners.begin(), owners.end(), [&](int o) {
      return o >= 0 && o < num_owners_;
    });
    if (num_shards.size() != num_tables || num_rows_.size() != num_tables ||
        total != owners.size() || !is_known ||
        *std::min_element(num_shards.begin(), num_shards.end()) < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`num_shards` and `num_rows` must have an entry for each of the ",
          num_tables, " tables, and `owners` an entry in [0, ", num_owners_,
          ") for each of their shards."));
    }
    std::vector<int> sizes(num_owners_);
    for (int t = 0; t < num_tables; ++t) {
      begins_.push_back(parts_.size());
      for (int s = 0; s < num_shards[t]; ++s) {
        const int owner = owners[parts_.size()];
        parts_.push_back({t, s, owner, sizes[owner]++});
      }
    }
    begins_.push_back(parts_.size());
    return absl::OkStatus();
  }

  int num_owners() const { return num_owners_; }
  int num_tables() const { return begins_.size() - 1; }
  // Per table; -1 where its vocabulary is not fixed.
  const std::vector<int64_t>& num_rows() const { return num_rows_; }
  absl::Span<const Part> parts() const { return parts_; }
  absl::Span<const Part> parts(int table) const {
    return parts().subspan(begins_[table], begins_[table + 1] - begins_[table]);
  }
  int num_shards(int table) const { return parts(table).size(); }

  // InvalidArgument where a request is not for these tables.
  absl::Status Check(absl::Span<const ReceivedRequest> requests,
                     const std::vector<int64_t>& dims) const {
    std::vector<size_t> sizes(num_owners_);
    for (const Part& part : parts_) {
      const auto& asked = requests[part.owner].parts();
      ++sizes[part.owner];
      if (part.index < asked.size() &&
          asked[part.index].dim == dims[part.table]) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("The request of owner ", part.owner,
                       " was not made for table ", part.table, "."));
    }
    for (int o = 0; o < num_owners_; ++o) {
      if (requests[o].parts().size() == sizes[o] &&
          requests[o].numbers() == requests[0].numbers()) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "The request of owner ", o, " has ", requests[o].parts().size(),
          " parts of ", requests[o].numbers().name(), "; its tables have ",
          sizes[o], " shards there, and the request of owner 0 is of ",
          requests[0].numbers().name(), "."));
    }
    return absl::OkStatus();
  }

 private:
  int num_owners_ = 0;
  std::vector<int64_t> num_rows_;
  std::vector<Part> parts_;  // Table by table, shard by shard.
  std::vector<int> begins_;  // By table; then the end.
};

class RequestRowsOp : public OpKernel {
 public:
  explicit RequestRowsOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, Construct(construction));
  }

  void Compute(OpKernelContext* context) override {
    Batch batch;
    const absl::Status status = Request(context, &batch);
    OP_REQUIRES_OK(
        context, status.ok() ? Pack(context, batch) : Refuse(context, status));
  }

 private:
  // A batch's keys: what is packed, and the memory that it lies in.
  struct Batch {
    std::vector<FeatureTensors> tensors;
    BatchStrings strings;
    std::vector<FeatureInput> features;
    OpInputList shards;
    std::vector<int64_t*> places;                            // By feature.
    std::vector<RowRequest> requests;                        // By table.
    std::vector<std::vector<int64_t>> local_rows;            // By part.
    std::vector<std::vector<absl::string_view>> local_keys;  // By part.
  };

  absl::Status Construct(OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(spec_.Read(construction));
    TF_RETURN_IF_ERROR(owners_.Read(construction, spec_.dims.size()));
    TF_RETURN_IF_ERROR(construction->GetAttr("repeats", &repeats_));
    TF_RETURN_IF_ERROR(construction->GetAttr("sender", &sender_));
    if (repeats_.size() != spec_.dims.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`repeats` must have an entry for each of the ",
                       spec_.dims.size(), " tables; got ", repeats_.size()));
    }
    tensorflow::DataType wire;
    TF_RETURN_IF_ERROR(construction->GetAttr("wire", &wire));
    return FindValueType(wire, &wire_);
  }

  absl::Status Request(OpKernelContext* context, Batch* batch) const {
    std::vector<FeatureParts> parts;
    TF_RETURN_IF_ERROR(ReadParts(context, spec_, &parts));
    TF_RETURN_IF_ERROR(ReadFeatures(spec_, parts, &batch->tensors));
    TF_RETURN_IF_ERROR(context->input_list("shards", &batch->shards));
    TF_RETURN_IF_ERROR(batch->strings.Number(spec_, &batch->tensors));
    for (size_t f = 0; f < parts.size(); ++f) {
      Tensor* places;
      TF_RETURN_IF_ERROR(context->allocate_output(
          owners_.num_owners() + f, parts[f].ids->shape(), &places));
      batch->places.push_back(places->flat<int64_t>().data());
    }
    std::vector<bool> fixed_vocabulary;
    for (int64_t rows : owners_.num_rows()) {
      fixed_vocabulary.push_back(rows >= 0);
    }
    TfExecutor executor(context);
    TF_RETURN_IF_ERROR(BuildFeatures(spec_, batch->tensors, fixed_vocabulary,
                                     &executor, &batch->features));
    TF_RETURN_IF_ERROR(CheckIds(batch->features));
    const int num_tables = owners_.num_tables();
    std::vector<std::vector<int>> features(num_tables);
    for (size_t f = 0; f < parts.size(); ++f) {
      features[spec_.features[f].table].push_back(f);
    }
    for (int t = 0; t < num_tables; ++t) {
      int64_t ids = 0;
      for (int f : features[t]) ids += batch->tensors[f].ids.size();
      if (ids >= RowRequest::kMostKeys) {
        return absl::InvalidArgumentError(absl::StrCat(
            "A batch has at most 2^31 - 1 ids of a table; got ", ids, "."));
      }
      batch->requests.emplace_back(ids);
    }
    batch->local_rows.resize(owners_.parts().size());
    batch->local_keys.resize(owners_.parts().size());
    FirstError error;
    ParallelFor(&executor, num_tables, [&](int64_t t) {
      error.Update(t, RequestTable(t, features[t], batch));
    });
    return error.status();
  }

  // Refuses ids that are in no row of a fixed vocabulary.
  absl::Status CheckIds(absl::Span<const FeatureInput> features) const {
    bool is_bad = false;
    for (size_t f = 0; f < features.size(); ++f) {
      const int64_t rows = owners_.num_rows()[spec_.features[f].table];
      const IdBags& bags = features[f].bags();
      if (rows < 0) continue;
      for (int64_t i = 0; i < bags.num_ids(); ++i) {
        is_bad |=
            static_cast<uint64_t>(bags.ids[i]) >= static_cast<uint64_t>(rows);
      }
    }
    if (!is_bad) return absl::OkStatus();
    return NameBadId(absl::InvalidArgumentError("An id is in no table."), spec_,
                     features, owners_.num_rows());
  }

  // Numbers the keys of a table's features, deals them, and sets the places.
  absl::Status RequestTable(int t, const std::vector<int>& features,
                            Batch* batch) const {
    RowRequest& request = batch->requests[t];
    for (int f : features) {
      if (repeats_[t]) {
        TF_RETURN_IF_ERROR(NumberOccurrences(f, batch));
      } else {
        NumberKeys(f, batch);
      }
    }
    std::vector<int32_t> shards;
    TF_RETURN_IF_ERROR(ReadShards(t, features, *batch, &shards));
    request.Deal(shards, owners_.num_shards(t));
    for (int f : features) {
      int64_t* const places = batch->places[f];
      for (size_t i = 0; i < batch->tensors[f].ids.size(); ++i) {
        if (places[i] >= 0) places[i] = request.place(places[i]);
      }
    }
    Localize(t, batch);
    return absl::OkStatus();
  }

  // Sets places to the numbers of the ids that stay.
  void NumberKeys(int f, Batch* batch) const {
    RowRequest& request = batch->requests[spec_.features[f].table];
    const absl::Span<const int64_t> ids = batch->tensors[f].ids;
    const IdBags& bags = batch->features[f].bags();
    int64_t* const places = batch->places[f];
    if (bags.ids == ids.data()) {
      for (size_t i = 0; i < ids.size(); ++i) places[i] = request.Add(ids[i]);
      return;
    }
    for (int64_t i = 0; i < bags.num_ids(); ++i) request.Add(bags.ids[i]);
    for (size_t i = 0; i < ids.size(); ++i) places[i] = request.Find(ids[i]);
  }

  // The same where each occurrence has a number. Positions take the place of
  // ids, so that it is known which of them were pruned.
  absl::Status NumberOccurrences(int f, Batch* batch) const {
    const FeatureSpec& spec = spec_.features[f];
    const FeatureTensors& tensors = batch->tensors[f];
    const absl::Span<const int64_t> ids = tensors.ids;
    std::vector<int64_t> positions(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto position = static_cast<int64_t>(i);
      positions[i] = ids[i] < 0 ? -1 - position : position;
    }
    FeatureTensors by_position;
    by_position.ids = positions;
    by_position.rows = tensors.rows;
    by_position.weights = tensors.weights;
    by_position.batch_size = tensors.batch_size;
    by_position.columns = tensors.columns;
    FeatureInput kept;
    TF_RETURN_IF_ERROR(
        kept.Build(spec, by_position, owners_.num_rows()[spec.table] >= 0));
    int64_t* const places = batch->places[f];
    std::fill(places, places + ids.size(), RowRequest::kNone);
    const IdBags& bags = kept.bags();
    for (int64_t i = 0; i < bags.num_ids(); ++i) {
      const int64_t code = bags.ids[i];
      const int64_t position = code < 0 ? -1 - code : code;
      places[position] = batch->requests[spec.table].Append(ids[position]);
    }
    return absl::OkStatus();
  }

  // The shard of each number: as given beside the ids, or the remainder.
  absl::Status ReadShards(int t, const std::vector<int>& features,
                          const Batch& batch,
                          std::vector<int32_t>* shards) const {
    const std::vector<int64_t>& keys = batch.requests[t].keys();
    const int num_shards = owners_.num_shards(t);
    const bool are_given =
        std::any_of(features.begin(), features.end(),
                    [&](int f) { return batch.shards[f].NumElements() > 0; });
    if (!are_given && (num_shards == 1 || !batch.strings.are_strings(t))) {
      DealByRemainder(keys, num_shards, shards);
      return absl::OkStatus();
    }
    shards->resize(keys.size());
    for (int f : features) {
      const auto given = batch.shards[f].flat<int32_t>();
      const int64_t n = batch.tensors[f].ids.size();
      if (given.size() != n) {
        return absl::InvalidArgumentError(absl::StrCat(
            "In ", spec_.features[f].name, ": there must be a shard for each ",
            "of the ", n, " ids; got ", given.size(), "."));
      }
      for (int64_t i = 0; i < n; ++i) {
        if (given(i) < 0 || given(i) >= num_shards) {
          return absl::InvalidArgumentError(
              absl::StrCat("In ", spec_.features[f].name, ": shard ", given(i),
                           " is not in [0, ", num_shards, ")."));
        }
        const int64_t number = batch.places[f][i];
        if (number >= 0) (*shards)[number] = given(i);
      }
    }
    return absl::OkStatus();
  }

  // What the shards of table t call its keys, where they do not call them so.
  void Localize(int t, Batch* batch) const {
    const int num_shards = owners_.num_shards(t);
    for (const TableOwners::Part& part : owners_.parts(t)) {
      const size_t p = &part - owners_.parts().data();
      const auto keys = batch->requests[t].shard(part.shard);
      if (batch->strings.are_strings(t)) {
        for (int64_t key : keys) {
          batch->local_keys[p].push_back(batch->strings.strings(t)[key]);
        }
      } else if (owners_.num_rows()[t] >= 0 && num_shards > 1) {
        for (int64_t id : keys) {
          batch->local_rows[p].push_back(id / num_shards);
        }
      }
    }
  }

  absl::Status Pack(OpKernelContext* context, const Batch& batch) const {
    std::vector<std::vector<RequestPart>> parts(owners_.num_owners());
    for (size_t p = 0; p < owners_.parts().size(); ++p) {
      const TableOwners::Part& part = owners_.parts()[p];
      RequestPart& packed = parts[part.owner].emplace_back();
      packed.dim = spec_.dims[part.table];
      packed.are_strings = batch.strings.are_strings(part.table);
      packed.keys = batch.requests[part.table].shard(part.shard);
      if (!batch.local_rows[p].empty()) packed.keys = batch.local_rows[p];
      packed.strings = batch.local_keys[p];
    }
    for (int o = 0; o < owners_.num_owners(); ++o) {
      const RequestPacker packer(parts[o], wire_);
      char* message;
      TF_RETURN_IF_ERROR(AllocateMessage(context, o, packer.size(), &message));
      packer.Pack(message);
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(OpKernelContext* context,
                      const absl::Status& error) const {
    const int num_owners = owners_.num_owners();
    TF_RETURN_IF_ERROR(
        SendError(context, sender_, num_owners, MessageKind::kRequest, error));
    OpInputList ids;
    TF_RETURN_IF_ERROR(context->input_list("ids", &ids));
    for (int f = 0; f < ids.size(); ++f) {
      Tensor* places = context->mutable_output(num_owners + f);
      if (places == nullptr) {
        TF_RETURN_IF_ERROR(
            context->allocate_output(num_owners + f, ids[f].shape(), &places));
      }
      places->flat<int64_t>().setConstant(RowRequest::kNone);
    }
    return absl::OkStatus();
  }

  GroupedSpec spec_;
  TableOwners owners_;
  std::vector<bool> repeats_;
  ValueType wire_;
  std::string sender_;
};

// The parts of received requests as features of one id a bag, in the order of
// GroupedSpec::ReadRequests. Borrows the requests.
absl::Status ReadRequested(const GroupedSpec& spec,
                           absl::Span<const ReceivedRequest> requests,
                           std::vector<FeatureTensors>* tensors) {
  tensors->reserve(spec.features.size());
  for (const ReceivedRequest& request : requests) {
    if (request.parts().size() != spec.dims.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("A request is for ", request.parts().size(),
                       " tables; this owner has ", spec.dims.size(),
                       ". Do all workers make the same tables?"));
    }
    for (size_t t = 0; t < spec.dims.size(); ++t) {
      const RequestPart& part = request.parts()[t];
      if (part.dim != spec.dims[t]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "A request is for rows of ", part.dim, " numbers of table ", t,
            ", whose rows have ", spec.dims[t],
            ". Do all workers make the same tables?"));
      }
      FeatureTensors& one = tensors->emplace_back();
      one.batch_size = part.size();
      one.are_strings = part.are_strings;
      one.ids = part.keys;
      if (!part.are_strings) continue;
      one.strings.assign(part.strings.begin(), part.strings.end());
      one.string_ids.resize(one.strings.size());
      one.ids = one.string_ids;
    }
  }
  return absl::OkStatus();
}

class ServeRowsOp : public LookupKernel {
 public:
  explicit ServeRowsOp(OpKernelConstruction* construction)
      : LookupKernel(construction, &GroupedSpec::ReadRequests) {}

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Serve(context));
  }

 private:
  absl::Status Serve(OpKernelContext* context) const {
    Messages messages;
    TF_RETURN_IF_ERROR(messages.Read(context, "requests"));
    std::vector<ReceivedRequest> requests;
    TF_RETURN_IF_ERROR(messages.Parse(&requests));
    std::vector<FeatureTensors> tensors;
    TF_RETURN_IF_ERROR(ReadRequested(spec(), requests, &tensors));
    std::vector<PooledFeature> pooled;
    std::vector<char*> answers(requests.size());
    std::vector<std::vector<float>> wide(requests.size());
    for (size_t r = 0; r < requests.size(); ++r) {
      const ReceivedRequest& request = requests[r];
      TF_RETURN_IF_ERROR(
          AllocateAnswer(context, r, MessageKind::kRows, request, &answers[r]));
      auto* rows = reinterpret_cast<float*>(answers[r]);
      if (!request.numbers().is_float32()) {
        wide[r].resize(request.RowBytes() / request.numbers().size());
        rows = wide[r].data();
      }
      for (const RequestPart& part : request.parts()) {
        PooledFeature& feature = pooled.emplace_back();
        feature.activations = rows;
        feature.stride = part.dim;
        rows += part.size() * part.dim;
      }
    }
    TF_RETURN_IF_ERROR(Pool(context, &tensors, &pooled));
    for (size_t r = 0; r < requests.size(); ++r) {
      requests[r].numbers().FromFloats(wide[r].data(), answers[r],
                                       wide[r].size());
    }
    return absl::OkStatus();
  }
};

// The base of the kernels that combine rows on a worker, and sum gradients.
class WorkerKernel : public LookupKernel {
 public:
  explicit WorkerKernel(OpKernelConstruction* construction)
      : LookupKernel(construction) {
    OP_REQUIRES_OK(construction,
                   owners_.Read(construction, spec().dims.size()));
  }

 protected:
  // What RequestRows made of a batch.
  struct Batch {
    Messages messages;
    std::vector<ReceivedRequest> requests;
    std::vector<FeatureTensors> tensors;
    std::vector<FeatureInput> features;  // Of places, in place of ids.
  };

  const TableOwners& owners() const { return owners_; }

  absl::Status ReadBatch(OpKernelContext* context, Executor* executor,
                         Batch* batch) const {
    TF_RETURN_IF_ERROR(batch->messages.Read(context, "requests"));
    TF_RETURN_IF_ERROR(batch->messages.Parse(&batch->requests));
    TF_RETURN_IF_ERROR(owners_.Check(batch->requests, spec().dims));
    std::vector<FeatureParts> parts;
    TF_RETURN_IF_ERROR(ReadParts(context, spec(), &parts));
    for (size_t f = 0; f < parts.size(); ++f) {
      if (parts[f].ids->dtype() == tensorflow::DT_INT64) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("In ", spec().features[f].name,
                       ": the ids must be the places that were requested."));
    }
    TF_RETURN_IF_ERROR(ReadFeatures(spec(), parts, &batch->tensors));
    // What was pruned before is pruned again, negative ids by their place.
    const std::vector<bool> everywhere(spec().dims.size(), true);
    return BuildFeatures(spec(), batch->tensors, everywhere, executor,
                         &batch->features);
  }

 private:
  TableOwners owners_;
};

class CombineRowsOp : public WorkerKernel {
 public:
  using WorkerKernel::WorkerKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Combine(context));
  }

 private:
  absl::Status Combine(OpKernelContext* context) const {
    TfExecutor executor(context);
    Batch batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, &executor, &batch));
    Messages answers;
    TF_RETURN_IF_ERROR(answers.Read(context, "answers"));
    std::vector<std::vector<absl::Span<const char>>> rows;  // By owner, part.
    for (int o = 0; o < owners().num_owners(); ++o) {
      auto parsed =
          ParseRows(MessageKind::kRows, batch.requests[o], answers[o]);
      if (!parsed.ok()) return parsed.status();
      rows.push_back(*std::move(parsed));
    }
    std::vector<ReceivedRows> tables;
    for (int t = 0; t < owners().num_tables(); ++t) {
      tables.emplace_back(spec().dims[t], batch.requests[0].numbers());
      for (const TableOwners::Part& part : owners().parts(t)) {
        tables[t].Append(rows[part.owner][part.index]);
      }
    }
    std::vector<PooledFeature> pooled(batch.tensors.size());
    TF_RETURN_IF_ERROR(AllocateActivations(context, batch.tensors, &pooled));
    for (size_t f = 0; f < pooled.size(); ++f) {
      pooled[f].source = &tables[spec().features[f].table];
      pooled[f].bags = batch.features[f].bags();
    }
    return PooledLookup(pooled, &executor);
  }
};

class SumRowGradientsOp : public WorkerKernel {
 public:
  explicit SumRowGradientsOp(OpKernelConstruction* construction)
      : WorkerKernel(construction) {
    std::string nonfinite;
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("nonfinite", &nonfinite));
    refuses_ = nonfinite == "refuse";
    OP_REQUIRES_OK(construction, construction->GetAttr("sender", &sender_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("table_names", &table_names_));
    OP_REQUIRES(construction, table_names_.size() == spec().dims.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`table_names` must have one name for each of the ",
                    spec().dims.size(), " tables; got ", table_names_.size())));
  }

  void Compute(OpKernelContext* context) override {
    TfExecutor executor(context);
    Batch batch;
    std::vector<SummedGradients> sums;
    const absl::Status status = Sum(context, &executor, &batch, &sums);
    OP_REQUIRES_OK(context,
                   status.ok()
                       ? Pack(context, batch, sums)
                       : SendError(context, sender_, owners().num_owners(),
                                   MessageKind::kSums, status));
  }

 private:
  absl::Status Sum(OpKernelContext* context, Executor* executor, Batch* batch,
                   std::vector<SummedGradients>* sums) const {
    TF_RETURN_IF_ERROR(ReadBatch(context, executor, batch));
    std::vector<const float*> gradients;
    TF_RETURN_IF_ERROR(
        ReadGradients(context, spec(), batch->tensors, &gradients));
    std::vector<std::vector<BagGradients>> by_table(spec().dims.size());
    for (size_t f = 0; f < gradients.size(); ++f) {
      const int t = spec().features[f].table;
      by_table[t].push_back(
          {batch->features[f].bags(), gradients[f], spec().dims[t]});
    }
    for (size_t t = 0; t < by_table.size(); ++t) {
      absl::StatusOr<SummedGradients> summed =
          SumGradients(by_table[t], spec().dims[t], executor);
      if (!summed.ok()) return summed.status();
      sums->push_back(*std::move(summed));
      TF_RETURN_IF_ERROR(CheckSums(t, *batch, &sums->back()));
    }
    return absl::OkStatus();
  }

  // The sums are those of all rows, in the order of places; finite ones, if
  // others are refused.
  absl::Status CheckSums(int t, const Batch& batch,
                         SummedGradients* sums) const {
    int64_t rows = 0;
    for (const TableOwners::Part& part : owners().parts(t)) {
      rows += batch.requests[part.owner].parts()[part.index].size();
    }
    const auto n = static_cast<int64_t>(sums->ids.size());
    if (n != rows ||
        (n > 0 && (sums->ids[0] != 0 || sums->ids[n - 1] != n - 1)))
      return absl::InvalidArgumentError(absl::StrCat(
          "The gradients are of ", n, " rows of table '", table_names_[t],
          "'; ", rows, " rows were requested for this batch."));
    if (!refuses_) return absl::OkStatus();
    const int64_t dim = spec().dims[t];
    const ValueType numbers = batch.requests[0].numbers();
    std::vector<uint16_t> sent(dim);
    for (int64_t place = 0; place < n; ++place) {
      float* const row = sums->rows.data() + place * dim;
      if (!numbers.is_float32()) {  // As it will arrive.
        numbers.FromFloats(row, sent.data(), dim);
        numbers.ToFloats(sent.data(), row, dim);
      }
      if (ActiveKernels().all_finite(row, dim)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "The summed gradient of id ", NameOf(t, place, batch), " of table '",
          table_names_[t],
          "' has a NaN or an infinity; nothing was changed. Skip such rows "
          "with nonfinite=\"skip\", or find where they come from."));
    }
    return absl::OkStatus();
  }

  std::string NameOf(int t, int64_t place, const Batch& batch) const {
    for (const TableOwners::Part& part : owners().parts(t)) {
      const RequestPart& asked = batch.requests[part.owner].parts()[part.index];
      if (place >= asked.size()) {
        place -= asked.size();
        continue;
      }
      if (asked.are_strings)
        return absl::StrCat("'", asked.strings[place], "'");
      if (owners().num_rows()[t] < 0) return absl::StrCat(asked.keys[place]);
      return absl::StrCat(asked.keys[place] * owners().num_shards(t) +
                          part.shard);
    }
    return "";
  }

  absl::Status Pack(OpKernelContext* context, const Batch& batch,
                    const std::vector<SummedGradients>& sums) const {
    std::vector<char*> to(owners().num_owners());
    for (int o = 0; o < owners().num_owners(); ++o) {
      TF_RETURN_IF_ERROR(AllocateAnswer(context, o, MessageKind::kSums,
                                        batch.requests[o], &to[o]));
    }
    // An owner's parts come in the order of tables here too.
    for (int t = 0; t < owners().num_tables(); ++t) {
      const float* from = sums[t].rows.data();
      for (const TableOwners::Part& part : owners().parts(t)) {
        const ReceivedRequest& request = batch.requests[part.owner];
        const int64_t bytes = request.RowBytes(part.index);
        const int64_t numbers = bytes / request.numbers().size();
        request.numbers().FromFloats(from, to[part.owner], numbers);
        to[part.owner] += bytes;
        from += numbers;
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::string> table_names_;
  std::string sender_;
  bool refuses_ = false;
};

class TrainRowsOp : public UpdateKernel {
 public:
  explicit TrainRowsOp(OpKernelConstruction* construction)
      : UpdateKernel(construction, &GroupedSpec::ReadRequests) {}

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, TrainRequested(context));
  }

 private:
  absl::Status TrainRequested(OpKernelContext* context) const {
    Messages messages, sums;
    TF_RETURN_IF_ERROR(messages.Read(context, "requests"));
    TF_RETURN_IF_ERROR(sums.Read(context, "sums"));
    std::vector<ReceivedRequest> requests;
    TF_RETURN_IF_ERROR(messages.Parse(&requests));
    std::vector<FeatureTensors> tensors;
    TF_RETURN_IF_ERROR(ReadRequested(spec(), requests, &tensors));
    std::vector<const float*> gradients;
    std::vector<std::vector<float>> wide(tensors.size());
    for (size_t r = 0; r < requests.size(); ++r) {
      const auto parts = ParseRows(MessageKind::kSums, requests[r], sums[r]);
      if (!parts.ok()) return parts.status();
      const ValueType numbers = requests[r].numbers();
      for (absl::Span<const char> part : *parts) {
        const auto* rows = reinterpret_cast<const float*>(part.data());
        if (!numbers.is_float32()) {
          std::vector<float>& floats = wide[gradients.size()];
          floats.resize(part.size() / numbers.size());
          numbers.ToFloats(part.data(), floats.data(), floats.size());
          rows = floats.data();
        }
        gradients.push_back(rows);
      }
    }
    return Train(context, &tensors, gradients);
  }
};

TFEMBED_KERNEL(RequestRows, RequestRowsOp);
TFEMBED_KERNEL(ServeRows, ServeRowsOp);
TFEMBED_KERNEL(CombineRows, CombineRowsOp);
TFEMBED_KERNEL(SumRowGradients, SumRowGradientsOp);
TFEMBED_KERNEL(TrainRows, TrainRowsOp);

}  // namespace
}  // namespace tfembed
