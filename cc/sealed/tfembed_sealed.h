/* Finds rows of the tables in a SavedModel that `tfembed export` or
 * tfembed.export.to_stock wrote, by its files alone: without TensorFlow and
 * without Python.
 *
 *   tfembed_sealed* model;
 *   const tfembed_sealed_table* users;
 *   float rows[2 * 64];
 *   const char* names[] = {"ann", "bob"};
 *   if (tfembed_sealed_open("ranker/1", &model) ||
 *       tfembed_sealed_get(model, "users", &users) ||
 *       tfembed_sealed_find_strings(users, names, NULL, 2, rows, NULL)) {
 *     fprintf(stderr, "%s\n", tfembed_sealed_message());
 *   }
 *
 * Files are mapped, not read: a model of any size opens in milliseconds, and
 * the processes that have it open share its memory. A model never changes; a
 * new version is a folder of its own, opened beside the old one. Files that are
 * mapped must not be written to or cut.
 *
 * All functions may be called by any number of threads at once, but for
 * tfembed_sealed_close: nobody uses a model or its tables then, or later.
 *
 * Functions that return a code return 0, or say what is wrong by
 * tfembed_sealed_message; what they were to write is not to be used then. */
#ifndef TFEMBED_SEALED_H_
#define TFEMBED_SEALED_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tfembed_sealed_code {
  TFEMBED_SEALED_OK = 0,
  TFEMBED_SEALED_NOT_FOUND = 1, /* There is no such folder or table. */
  TFEMBED_SEALED_DAMAGED = 2,   /* A file is cut, changed, or of a later
                                   format. */
  TFEMBED_SEALED_BAD_ARGUMENT =
      3,                    /* A call that would be wrong for any file. */
  TFEMBED_SEALED_FAILED = 4 /* The system refused a file or memory. */
} tfembed_sealed_code;

/* An open SavedModel. */
typedef struct tfembed_sealed tfembed_sealed;

/* One of its tables, valid until the model is closed. */
typedef struct tfembed_sealed_table tfembed_sealed_table;

typedef struct tfembed_sealed_info {
  const char* name;    /* UTF-8, valid until the model is closed. */
  const char* dtype;   /* Of rows that are found: "float32", "float64",
                          "float16", "bfloat16", "int8", "int32", "int64" or
                          "bool", a byte each. */
  int64_t dim;         /* The numbers of a row. */
  int64_t row_bytes;   /* The bytes of a row that is found. */
  int64_t num_rows;    /* The number of keys. */
  int64_t num_bytes;   /* The bytes of the table in its file. */
  int has_string_keys; /* 1: keys are strings; 0: they are integers. */
} tfembed_sealed_info;

/* What the last function of this thread that failed has to say: what, which,
 * and what to do. Valid until the next one fails. */
const char* tfembed_sealed_message(void);

/* Opens a SavedModel, the folder that has `saved_model.pb`. Of each table the
 * head and the list of checksums are read and checked. */
tfembed_sealed_code tfembed_sealed_open(const char* folder,
                                        tfembed_sealed** model);

/* Closes it. NULL is closed already. */
void tfembed_sealed_close(tfembed_sealed* model);

/* Reads all bytes of the model and compares their checksums, some gigabytes a
 * second. For files that came over a network, say. */
tfembed_sealed_code tfembed_sealed_check(const tfembed_sealed* model);

/* The number of tables. */
int64_t tfembed_sealed_count(const tfembed_sealed* model);

/* The table of a number from 0 on; NULL beyond the last one. */
const tfembed_sealed_table* tfembed_sealed_at(const tfembed_sealed* model,
                                              int64_t number);

/* The table of a name, that of the layer or of the configuration. NULL: the
 * only table. */
tfembed_sealed_code tfembed_sealed_get(const tfembed_sealed* model,
                                       const char* name,
                                       const tfembed_sealed_table** table);

/* Describes a table. */
void tfembed_sealed_describe(const tfembed_sealed_table* table,
                             tfembed_sealed_info* info);

/* Finds the rows of `count` keys.
 *
 * rows: gets `count` rows of `row_bytes` bytes, one after the other; a key that
 *   the table has not gets the row that training would have begun with. At a
 *   multiple of a number's size. NULL: rows are not wanted.
 * exists: gets 1 for a key that the table has, else 0. Or NULL.
 *
 * A call with thousands of keys finds several times as many in a second as
 * calls with one key, since it waits for many rows at once. */
tfembed_sealed_code tfembed_sealed_find(const tfembed_sealed_table* table,
                                        const int64_t* keys, int64_t count,
                                        void* rows, uint8_t* exists);

/* The same by strings of any bytes. sizes: the bytes of each string; NULL: each
 * ends before its first zero. */
tfembed_sealed_code tfembed_sealed_find_strings(
    const tfembed_sealed_table* table, const char* const* keys,
    const size_t* sizes, int64_t count, void* rows, uint8_t* exists);

#ifdef __cplusplus
}
#endif

#endif /* TFEMBED_SEALED_H_ */
