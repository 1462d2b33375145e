#include "cc/sealed/tfembed_sealed.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "cc/core/sealed/sealed_table.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Sealed tables are little-endian, and read as they lie there."
#endif

// A table, and the file that it is in.
struct tfembed_sealed_table {
  std::string path;
  std::unique_ptr<tfembed::SealedTable> table;
};

namespace {

constexpr int64_t kMarkBytes = 8;
constexpr char kPrefix[] = "variables.data-";

// What ends a call.
struct Failure {
  tfembed_sealed_code code;
  std::string message;
};

[[noreturn]] void Fail(tfembed_sealed_code code, std::string message) {
  throw Failure{code, std::move(message)};
}

// Fails because of the system's last error.
[[noreturn]] void FailBySystem(const std::string& path) {
  const int error = errno;
  Fail(error == ENOENT || error == ENOTDIR ? TFEMBED_SEALED_NOT_FOUND
                                           : TFEMBED_SEALED_FAILED,
       "'" + path + "' cannot be read: " + std::strerror(error) + ".");
}

[[noreturn]] void FailByDamage(const std::string& path,
                               const std::string& fault) {
  Fail(TFEMBED_SEALED_DAMAGED,
       "'" + path + "' is damaged: " + fault +
           ". Copy the folder again, or export the model again.");
}

std::string& Message() {
  static thread_local std::string message;
  return message;
}

// Runs the body of a function that returns a code.
template <typename Body>
tfembed_sealed_code Guarded(Body body) {
  try {
    body();
    return TFEMBED_SEALED_OK;
  } catch (Failure& failure) {
    Message() = std::move(failure.message);
    return failure.code;
  } catch (const std::exception& error) {  // std::bad_alloc, above all.
    Message() = std::string("Memory was refused: ") + error.what() + ".";
    return TFEMBED_SEALED_FAILED;
  }
}

// An open file.
class File {
 public:
  explicit File(std::string path)
      : path_(std::move(path)),
        descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) FailBySystem(path_);
  }
  File(const File&) = delete;
  ~File() { close(descriptor_); }

  int64_t size() const {
    const off_t size = lseek(descriptor_, 0, SEEK_END);
    if (size < 0) FailBySystem(path_);
    return size;
  }

  // Whether the bytes from `at` on are the mark of a sealed table.
  bool HasMark(int64_t at) const {
    char mark[kMarkBytes];
    if (at < 0) return false;
    const ssize_t got = pread(descriptor_, mark, kMarkBytes, at);
    if (got < 0) FailBySystem(path_);
    return got == kMarkBytes && tfembed::SealedTable::IsMark(mark);
  }

  // The address of its bytes; null of an empty one.
  void* Map(int64_t size) const {
    if (size == 0) return nullptr;
    void* bytes = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (bytes == MAP_FAILED) FailBySystem(path_);
    return bytes;
  }

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const int descriptor_;
};

// A file in memory, for as long as it is there.
class Mapping {
 public:
  explicit Mapping(const File& file)
      : size_(file.size()), bytes_(file.Map(size_)) {}
  Mapping(Mapping&& other) noexcept
      : size_(other.size_), bytes_(std::exchange(other.bytes_, nullptr)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (bytes_ != nullptr) munmap(bytes_, size_);
  }

  const void* bytes() const { return bytes_; }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  void* bytes_;
};

// The data files of the checkpoint in a folder.
std::vector<std::string> DataFiles(const std::string& model) {
  const std::string folder = model + "/variables";
  std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()),
                                              closedir);
  if (!listing) {
    const int error = errno;
    if (error != ENOENT && error != ENOTDIR) FailBySystem(folder);
    Fail(TFEMBED_SEALED_NOT_FOUND,
         "'" + model +
             "' is no SavedModel: it has no folder 'variables'. "
             "Give the folder that `tfembed export` wrote.");
  }
  int count = -1;
  while (const dirent* entry = readdir(listing.get())) {
    int number = 0;
    int of = 0;
    int end = 0;
    const std::string name = entry->d_name;
    if (name.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0 ||
        std::sscanf(name.c_str() + sizeof(kPrefix) - 1, "%5d-of-%5d%n", &number,
                    &of, &end) != 2 ||
        sizeof(kPrefix) - 1 + end != name.size()) {
      continue;
    }
    if (of < 1 || (count >= 0 && count != of)) {
      FailByDamage(folder, "it has data files of several checkpoints");
    }
    count = of;
  }
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "/%s%05d-of-%05d", kPrefix, i, count);
    files.push_back(folder + name);
  }
  return files;
}

std::string NamesOf(const std::vector<tfembed_sealed_table>& tables) {
  constexpr size_t kMost = 20;
  std::string names;
  for (size_t i = 0; i < std::min(kMost, tables.size()); ++i) {
    names += (i > 0 ? ", '" : "'") + tables[i].table->name() + "'";
  }
  return names + (tables.size() > kMost ? ", ..." : "");
}

// Checks what both kinds of lookups are given.
void CheckFind(const tfembed_sealed_table* table, const void* keys,
               int64_t count, bool by_strings) {
  if (table == nullptr || count < 0 || (keys == nullptr && count > 0)) {
    Fail(TFEMBED_SEALED_BAD_ARGUMENT,
         "A table, keys and a count of 0 or more are needed; got " +
             std::string(table == nullptr ? "no table"
                         : count < 0      ? std::to_string(count) + " keys"
                                          : "no keys") +
             ".");
  }
  if (table->table->has_string_keys() != by_strings) {
    Fail(TFEMBED_SEALED_BAD_ARGUMENT,
         "Table '" + table->table->name() +
             (by_strings ? "' has integers as keys: call tfembed_sealed_find."
                         : "' has strings as keys: call "
                           "tfembed_sealed_find_strings."));
  }
}

}  // namespace

struct tfembed_sealed {
  std::vector<Mapping> mappings;
  std::vector<tfembed_sealed_table> tables;
};

const char* tfembed_sealed_message(void) { return Message().c_str(); }

tfembed_sealed_code tfembed_sealed_open(const char* folder,
                                        tfembed_sealed** model) {
  return Guarded([&] {
    if (folder == nullptr || model == nullptr) {
      Fail(TFEMBED_SEALED_BAD_ARGUMENT,
           "A folder is needed, and a place for the model; got NULL.");
    }
    *model = nullptr;
    auto opened = std::make_unique<tfembed_sealed>();
    for (const std::string& path : DataFiles(folder)) {
      const File file(path);
      const int64_t size = file.size();
      if (!file.HasMark(0) && !file.HasMark(size - kMarkBytes)) continue;
      Mapping mapping(file);
      std::string fault;
      auto table =
          tfembed::SealedTable::Open(mapping.bytes(), mapping.size(), &fault);
      if (!table) FailByDamage(path, fault);
      opened->mappings.push_back(std::move(mapping));
      opened->tables.push_back({path, std::move(table)});
    }
    if (opened->tables.empty()) {
      Fail(TFEMBED_SEALED_NOT_FOUND,
           "'" + std::string(folder) +
               "' has no sealed table. Convert the model by `tfembed export "
               "SOURCE TARGET` first, and open the target.");
    }
    *model = opened.release();
  });
}

void tfembed_sealed_close(tfembed_sealed* model) { delete model; }

tfembed_sealed_code tfembed_sealed_check(const tfembed_sealed* model) {
  return Guarded([&] {
    if (model == nullptr) {
      Fail(TFEMBED_SEALED_BAD_ARGUMENT, "A model is needed; got NULL.");
    }
    for (const auto& [path, table] : model->tables) {
      if (!table->IsWhole()) {
        FailByDamage(path, "table '" + table->name() +
                               "' has bytes with another checksum");
      }
    }
  });
}

int64_t tfembed_sealed_count(const tfembed_sealed* model) {
  return model == nullptr ? 0 : model->tables.size();
}

const tfembed_sealed_table* tfembed_sealed_at(const tfembed_sealed* model,
                                              int64_t number) {
  if (number < 0 || number >= tfembed_sealed_count(model)) return nullptr;
  return &model->tables[number];
}

tfembed_sealed_code tfembed_sealed_get(const tfembed_sealed* model,
                                       const char* name,
                                       const tfembed_sealed_table** table) {
  return Guarded([&] {
    if (model == nullptr || table == nullptr) {
      Fail(TFEMBED_SEALED_BAD_ARGUMENT,
           "A model is needed, and a place for the table; got NULL.");
    }
    *table = nullptr;
    const std::vector<tfembed_sealed_table>& tables = model->tables;
    for (const tfembed_sealed_table& one : tables) {
      if (name != nullptr && one.table->name() != name) continue;
      if (*table != nullptr) {
        *table = nullptr;
        Fail(TFEMBED_SEALED_BAD_ARGUMENT,
             name == nullptr
                 ? "The model has several tables, so a name is needed; they "
                   "are " +
                       NamesOf(tables) + "."
                 : "The model has several tables '" + std::string(name) +
                       "': take one by tfembed_sealed_at.");
      }
      *table = &one;
    }
    if (*table == nullptr) {
      Fail(TFEMBED_SEALED_NOT_FOUND,
           "The model has no table '" + std::string(name) +
               "'; its tables are " + NamesOf(tables) + ".");
    }
  });
}

void tfembed_sealed_describe(const tfembed_sealed_table* table,
                             tfembed_sealed_info* info) {
  const tfembed::SealedTable& sealed = *table->table;
  info->name = sealed.name().c_str();
  info->dtype = sealed.type().name();
  info->dim = sealed.dim();
  info->row_bytes = sealed.dim() * sealed.type().size();
  info->num_rows = sealed.num_rows();
  info->num_bytes = sealed.num_bytes();
  info->has_string_keys = sealed.has_string_keys();
}

tfembed_sealed_code tfembed_sealed_find(const tfembed_sealed_table* table,
                                        const int64_t* keys, int64_t count,
                                        void* rows, uint8_t* exists) {
  return Guarded([&] {
    CheckFind(table, keys, count, /*by_strings=*/false);
    table->table->Find(keys, count, rows, exists);
  });
}

tfembed_sealed_code tfembed_sealed_find_strings(
    const tfembed_sealed_table* table, const char* const* keys,
    const size_t* sizes, int64_t count, void* rows, uint8_t* exists) {
  return Guarded([&] {
    CheckFind(table, keys, count, /*by_strings=*/true);
    std::vector<absl::string_view> texts;
    texts.reserve(count);
    for (int64_t i = 0; i < count; ++i) {
      if (keys[i] == nullptr && (sizes == nullptr || sizes[i] > 0)) {
        Fail(TFEMBED_SEALED_BAD_ARGUMENT,
             "Key " + std::to_string(i) + " is NULL; give a string.");
      }
      texts.emplace_back(keys[i],
                         sizes != nullptr ? sizes[i] : std::strlen(keys[i]));
    }
    table->table->Find(texts.data(), count, rows, exists);
  });
}
