#ifndef TFEMBED_CORE_SUPPORT_SCRATCH_BUFFER_H_
#define TFEMBED_CORE_SUPPORT_SCRATCH_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace tfembed {

// Uninitialized memory for one step. Its destructor hands it to the thread that
// runs it, whose next buffers take it over: a fresh page costs more than what a
// step does with it.
template <class T>
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(ScratchBuffer&&) = delete;
  ~ScratchBuffer() {
    constexpr size_t kKept = 256;
    if (words_ == nullptr || Free().size() >= kKept) return;
    try {
      Free().push_back({std::move(words_), capacity_});
    } catch (const std::bad_alloc&) {  // Then it is not kept.
    }
  }

  // Room for n; what was there is lost.
  void Resize(int64_t n) {
    const int64_t words = (n * sizeof(T) + sizeof(Word) - 1) / sizeof(Word);
    if (words_ == nullptr && !Free().empty()) {
      words_ = std::move(Free().back().words);
      capacity_ = Free().back().capacity;
      Free().pop_back();
    }
    if (capacity_ < words) {
      words_.reset();
      capacity_ = words + words / 4;
      words_.reset(new Word[capacity_]);
    }
  }

  T* data() { return reinterpret_cast<T*>(words_.get()); }
  const T* data() const { return reinterpret_cast<const T*>(words_.get()); }

 private:
  struct alignas(16) Word {
    char bytes[16];
  };
  struct FreeBuffer {
    std::unique_ptr<Word[]> words;
    int64_t capacity;
  };

  static std::vector<FreeBuffer>& Free() {
    static thread_local std::vector<FreeBuffer> free;
    return free;
  }

  std::unique_ptr<Word[]> words_;
  int64_t capacity_ = 0;  // In words.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_SCRATCH_BUFFER_H_
