"""Long random sequences of all operations on a Variable against a dict.

HYPOTHESIS_PROFILE=full: a million operations for each number of shards.
"""

from __future__ import annotations

import os
import threading

import pytest

from property import variable_fuzzer

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
OPERATIONS = 1_000_000 if FULL else 10_000
SHARDS = [1, 2, 3, 7]
THREADS = 8


@pytest.mark.parametrize("shards", SHARDS)
def test_a_variable_agrees_with_a_dict(shards, tmp_path):
    fuzzer = variable_fuzzer.VariableFuzzer(
        variable_fuzzer.new_variable(shards, "fuzz"),
        variable_fuzzer.key_pool(2000),
        seed=shards,
    )
    others = [n for n in SHARDS if n != shards]
    variable_fuzzer.run(fuzzer, OPERATIONS, [*others, shards], tmp_path)


@pytest.mark.parametrize("shards", [1, 3])
def test_each_of_many_threads_finds_its_keys_as_it_left_them(shards):
    variable = variable_fuzzer.new_variable(shards, "shared")
    fuzzers = [
        variable_fuzzer.VariableFuzzer(
            variable,
            variable_fuzzer.key_pool(400, first=thread, step=THREADS),
            seed=thread,
            alone=False,
        )
        for thread in range(THREADS)
    ]
    failures: list[BaseException] = []

    def work(fuzzer):
        try:
            while fuzzer.done < OPERATIONS / THREADS and not failures:
                fuzzer.step()
            fuzzer.export()
        except BaseException as error:  # The main thread raises it.
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=[fuzzer]) for fuzzer in fuzzers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert int(variable.size()) == sum(len(f.model) for f in fuzzers)
