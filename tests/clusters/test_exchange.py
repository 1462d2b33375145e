"""Parts of any size between workers, by TensorFlow's collective transport."""

from __future__ import annotations

import pytest

from tests.clusters import workers

PROGRAM = """
    import signal, time
    from tfembed.ops import parts as ops

    devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0"
               for i in range(workers)]

    def channel(name, seconds=60.0):
        return ops.channel(
            name, devices=devices, worker=me, seconds=seconds
        )

    # The workers learn of one another by a collective of TensorFlow.
    strategy.run(lambda: tf.distribute.get_replica_context().all_reduce(
        "SUM", tf.ones([])
    ))
    channels = [channel(f"c{i}") for i in range(3)]
    traces = []
    spec = [tf.TensorSpec([None], tf.uint8)] * workers

    @tf.function(input_signature=[spec])
    def sizes_unknown(parts):
        traces.append(None)
        return ops.exchange(channels[0], parts)

    @tf.function(input_signature=[spec, tf.TensorSpec([workers], tf.int64)])
    def sizes_known(parts, sizes):
        traces.append(None)
        return ops.exchange(channels[1], parts, sizes=sizes)

    def bytes_of(source, to, step, size):
        return np.full([size], (50 * source + 7 * to + step) % 251, np.uint8)

    def is_right(got, step, sizes):
        return all(
            np.array_equal(got[i].numpy(), bytes_of(i, me, step, sizes[i, me]))
            for i in range(workers)
        )

    rng = np.random.default_rng(3)
    rounds = [rng.integers(0, 300, [workers, workers]) for _ in range(4)]
    rounds.append(np.zeros([workers, workers], int))
    rounds.append(np.where(np.arange(workers) == 0, 100, 0)[:, None]
                  * np.ones([1, workers], int))
    rounds.append(rounds[-1].T)
    rounds.append(np.full([workers, workers], 16 << 20))
    saw["right"] = []
    for step, sizes in enumerate(rounds):
        sent = [
            tf.constant(bytes_of(me, i, step, sizes[me, i]))
            for i in range(workers)
        ]
        saw["right"].append(is_right(sizes_unknown(sent), step, sizes))
        saw["right"].append(
            is_right(sizes_known(sent, sizes[:, me]), step, sizes)
        )
    saw["traces"] = len(traces)
    saw["dtype"] = [
        x.numpy().tolist()
        for x in ops.exchange(
            channels[2], [tf.constant([-me], tf.int8)] * workers
        )
    ]

    # A worker alone traces a function again: messages do not know.
    def again(parts):
        return ops.exchange(channels[0], parts)
    if me == 0:
        sizes_unknown = tf.function(again)
    one = [tf.constant([i], tf.uint8) for i in range(workers)]
    saw["retraced"] = [x.numpy().tolist() for x in sizes_unknown(one)]

    # Two exchanges of a loop, in order.
    def body(i, found):
        mine = tf.cast(tf.reshape(10 * i + me, [1]), tf.uint8)
        for _ in range(2):
            got = ops.exchange(channels[0], [mine] * workers)
            found = tf.concat([found, *got], 0)
        return i + 1, found
    loop = tf.function(lambda: tf.while_loop(
        lambda i, found: i < 5, body, [0, tf.zeros([0], tf.uint8)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )[1])
    saw["loop"] = loop().numpy().tolist()

    # An error that a worker knows before it sends.
    def told(error, known):
        sizes = [1] * workers if known else None
        return ops.exchange(channels[0], one, sizes=sizes, error=error)
    text = "the batch is bad" if me == 1 else ""
    saw["told"] = [failure(lambda: told(text, known)) for known in (0, 1)]
    saw["after"] = [x.numpy().tolist() for x in told("", False)]
    saw["refused"] = [
        failure(lambda: ops.exchange(channels[2], one[1:])),
        failure(lambda: ops.exchange(channels[2], one, sizes=[1])),
    ]

    ops.exchange(channels[0], one)
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    saw["killed"] = failure(lambda: ops.exchange(channels[0], one))
    saw["soon"] = time.monotonic() - start < 60
    saw["later"] = failure(lambda: ops.exchange(channels[1], one))
    end()
"""


@pytest.fixture(name="saw", scope="module")
def run_program():
    """Returns what workers 0 and 2 of three saw; worker 1 was killed."""
    return workers.run(PROGRAM, 3, killed=[1])


def test_parts_of_any_size_arrive_in_one_trace(saw):
    for one in saw:
        assert one["right"] == [True] * 16
        assert one["traces"] == 2
        assert one["dtype"] == [[0], [-1], [-2]]


def test_a_worker_that_traces_again_does_not_lose_the_others(saw):
    assert [one["retraced"] for one in saw] == [[[0]] * 3, [[2]] * 3]


def test_exchanges_of_a_loop_keep_their_order(saw):
    wanted = [10 * i + w for i in range(5) for _ in range(2) for w in range(3)]

    assert [one["loop"] for one in saw] == [wanted] * 2


def test_an_error_of_one_worker_is_raised_by_all_and_the_next_step_works(saw):
    name = "From worker 1 (/job:worker/replica:0/task:1): the batch is bad"
    for one in saw:
        assert all(
            text.startswith("InvalidArgumentError") and name in text
            for text in one["told"]
        )
    assert [one["after"] for one in saw] == [[[0]] * 3, [[2]] * 3]


def test_parts_for_other_workers_than_there_are_are_refused(saw):
    for parts, sizes in (one["refused"] for one in saw):
        assert "a part for each of the 3 workers; got 2" in parts
        assert "`sizes` must have one for each of the 3 workers" in sizes


def test_a_worker_that_dies_fails_the_others_by_name(saw):
    for one in saw:
        for text in (one["killed"], one["later"]):
            assert "worker 1 (/job:worker/replica:0/task:1) gone" in text, text
        assert one["killed"].startswith("UnavailableError")
        assert one["soon"]


def test_a_worker_that_does_not_come_is_named():
    program = """
        from tfembed.ops import parts as ops
        devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0"
                   for i in range(workers)]
        sum_of = lambda: strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                "SUM", tf.ones([])
            )
        )
        sum_of()
        def channel(name, seconds):
            return ops.channel(
                name, devices=devices, worker=me, seconds=seconds
            )
        # Each waits for the other, in exchanges that never meet.
        mine = channel("users", 0.5) if me == 0 else channel("items", 60.0)
        parts = [tf.zeros([3], tf.uint8)] * workers
        saw["late"] = failure(lambda: ops.exchange(mine, parts))
        end()
    """
    first, second = workers.run(program, 2)

    assert first["late"].startswith("DeadlineExceededError"), first
    text = (
        "An exchange of 'users' waited 0.5 s for worker 1 "
        "(/job:worker/replica:0/task:1)"
    )
    assert text in first["late"]
    assert text in second["late"]
