#ifndef TFEMBED_CORE_SEALED_SEALED_TABLE_H_
#define TFEMBED_CORE_SEALED_SEALED_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cc/core/rows/initial_rows.h"
#include "cc/core/rows/value_type.h"
#include "cc/core/sealed/perfect_hash.h"

namespace tfembed {

// Lookups in the bytes of a sealed table (docs/formats/sealed_table.md), which
// nobody changes: a mapped file, say. The table holds some hundred bytes of its
// own. It is immutable, so any number of threads look up at once.
//
// Bytes are not trusted: those that are no sealed table are refused or give
// wrong rows, and no read is outside of them. There is no absl::Status here,
// since programs without TensorFlow have not its library.
class SealedTable {
 public:
  // Opens `size` bytes, and reads of them head, notes and checks alone. Returns
  // null for bytes that are no whole table, and says why in `fault`. The bytes
  // outlive the table. REQUIRES: they begin at a multiple of 64.
  static std::unique_ptr<SealedTable> Open(const void* bytes, int64_t size,
                                           std::string* fault);

  // Says whether a file that begins or ends with these 8 bytes has a sealed
  // table.
  static bool IsMark(const char* bytes);

  // Reads all bytes; returns whether they are as they were written.
  bool IsWhole() const;

  const std::string& name() const { return name_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t dim() const { return dim_; }
  int64_t num_bytes() const { return num_bytes_; }
  bool has_string_keys() const { return key_words_ == 2; }

  // The dtype of rows that Find writes: that of training.
  ValueType type() const { return missing_->type(); }

  // Looks n keys up.
  //
  // rows: n rows of dim() numbers of type(), one after the other; of a key that
  //   is not in the table the initial row. Null: no rows are wanted.
  // exists: for each key 1 or 0; or null.
  // REQUIRES: has_string_keys() is that of the keys. May throw
  // std::bad_alloc, for a row in another dtype than type().
  void Find(const int64_t* keys, int64_t n, void* rows, uint8_t* exists) const;
  void Find(const absl::string_view* keys, int64_t n, void* rows,
            uint8_t* exists) const;

 private:
  // The numbers at the begin of the bytes.
  struct Head;
  class IntegerKeys;
  class StringKeys;
  struct Walk;

  explicit SealedTable(const char* bytes) : bytes_(bytes) {}

  // Takes the head, once it is found right; returns what is wrong with it.
  std::string TakeHead(const Head& head, int64_t size);
  std::string TakeNotes();
  std::string CheckBegin() const;

  template <typename Keys>
  void FindAll(const Keys& keys, int64_t n, char* rows, uint8_t* exists) const;
  template <int64_t kBytes, typename Keys>
  void FindRange(const Keys& keys, int64_t n, char* rows,
                 uint8_t* exists) const;
  template <int64_t kBytes>
  void ReadRow(const char* stored, bool streams, char* row) const;

  const char* const bytes_;
  int64_t num_rows_ = 0;
  int64_t dim_ = 0;
  int64_t key_words_ = 1;
  uint64_t secret_[2] = {0, 0};
  int64_t num_bytes_ = 0;
  KeyPlaces places_{PerfectHashSizes()};
  const uint16_t* pilots_ = nullptr;
  const int64_t* keys_ = nullptr;
  const char* rows_ = nullptr;
  const char* checks_ = nullptr;
  ValueType stored_;        // The dtype of the rows in the bytes.
  bool has_steps_ = false;  // Whether they are steps of a byte a number.
  bool is_copied_ = false;  // Whether rows are read as they lie there.
  int64_t row_bytes_ = 0;   // Of a row in the bytes.
  std::string name_;
  std::optional<InitialRows> missing_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SEALED_SEALED_TABLE_H_
