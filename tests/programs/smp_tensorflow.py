"""Four ranks divide small models in several ways, and compare each with the same model whole. Argument: a folder.

With the argument "three" behind it, three ranks do so with a chain alone; with "short", four with replicas alone."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from toolkit.parallelism import decision

keras = tf.keras
keras.backend.set_floatx("float64")  # So that a wrong gradient is seen, however small the difference.
Dense = keras.layers.Dense
FOLDER = Path(sys.argv[1])
RNG = np.random.default_rng(3)
IMAGES, LABELS = RNG.random((16, 6)), RNG.integers(0, 4, 16)


class Chain:
    def make(self):
        self.body = keras.Sequential([Dense(8, activation="tanh") for _ in range(4)])
        self.head = Dense(4)

    def call(self, x):
        return self.head(self.body(x))


class Nested:
    """Branches, a layer that is called twice, a skip over partitions, and a return to an earlier one."""

    def make(self):
        self.a, self.b, self.c, self.d, self.out = (Dense(8, activation="tanh") for _ in range(5))
        self.norm = keras.layers.BatchNormalization()
        self.head = Dense(4)

    def call(self, x, training=None):
        with smp.partition(0):
            h = self.a(x)
        with smp.partition(1):
            left = self.b(h)
        with smp.partition(2):
            right = tf.nn.relu(self.c(h)) + self.c(left)
        with smp.partition(0):
            back = self.d(tf.concat([left, right], 1)) + h
        with smp.partition(3):
            back = self.norm(back, training=training)
            return {"scores": self.head(self.out(back)), "hidden": tf.reduce_mean(back), "none": None}


def scores(result):
    return result["scores"] if isinstance(result, dict) else result


def build_model(body, base, seed):
    kind = type("Net", (body, base), {"__init__": lambda self: (base.__init__(self), self.make())[0]})
    keras.utils.set_random_seed(seed)
    return kind()


def once(function, *args):
    """Return what *function* returns on the first rank."""
    if smp.rank():
        return smp.recv_from(0)
    result = function(*args)
    smp.broadcast(result)
    return result


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def complete(body, microbatches, seed=1):
    """Return the gradients, by the variables' names and numbers, and the loss of the model in one process."""
    model = build_model(body, keras.Model, seed)

    @tf.function
    def both(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, scores(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables), loss

    parts = [both(x, y) for x, y in zip(np.split(IMAGES, microbatches), np.split(LABELS, microbatches))]
    total = [
        sum(np.array(gradient) for gradient in column) / microbatches for column in zip(*(part[0] for part in parts))
    ]
    return dict(zip(names(model), total)), float(np.mean([part[1] for part in parts]))


def names(model):
    """Return each trainable variable's place: the layer's number in the whole model, and its own there."""
    order = [layer for layer in model._flatten_layers(recursive=True, include_self=False)]
    return [
        next((n, m) for n, layer in enumerate(order) for m, weight in enumerate(layer.variables) if weight is variable)
        for variable in model.trainable_variables
    ]


def compared(name, body, config, tape=False, **options):
    smp.init(config)
    expected, loss_expected = once(complete, body, smp.state.cfg.microbatches * smp.rdp_size())
    # Replicas begin with weights of their own: they get those of the first.
    model = build_model(body, smp.DistributedModel, 1 + smp.rdp_rank())
    optimizer = keras.optimizers.SGD(0.1, momentum=0.5)

    @smp.step(**options)
    def step(x, y):
        if tape:
            with tf.GradientTape() as gradient_tape:
                loss = LOSS(y, scores(model(x, training=True)))
            return gradient_tape.gradient(loss, model.trainable_variables), loss
        loss = LOSS(y, scores(model(x, training=True)))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    # The microbatches of all replicas together are those of the whole model.
    x, y = (np.split(array, smp.rdp_size())[smp.rdp_rank()] for array in (IMAGES, LABELS))
    function = tf.function(lambda x, y: results(step(x, y)))
    for _ in range(3):
        gradients = function(tf.constant(x), tf.constant(y))
    held = names(model)
    assert held and set(held) < set(expected), (name, held)
    worst = max(
        float(np.linalg.norm(gradient - expected[place]) / np.linalg.norm(expected[place]))
        for gradient, place in zip(map(np.array, gradients[0]), held)
    )
    assert worst < 1e-12, (name, worst)
    losses = smp.allgather(float(gradients[1]), smp.CommGroup.RDP_GROUP)
    assert abs(np.mean(losses) - loss_expected) < 1e-12, (name, losses, loss_expected)
    everyone = smp.allgather(held, smp.CommGroup.PP_GROUP)
    assert sorted(sum(everyone, [])) == sorted(expected), everyone
    print(f"rank {smp.rank()}: {name}: gradients are equal for {len(held)} variables", flush=True)
    return model, optimizer


def alter(model, seed):
    """Replace the last layer of the Sequential, put one more behind it, and, where Keras allows it, replace the head."""
    keras.utils.set_random_seed(seed)
    model.body.pop()
    for _ in range(2):
        model.body.add(Dense(8, activation="tanh"))
    if "tf_keras" in sys.modules:
        model.head = Dense(4)


def altered(config):
    """The script changes the model after its partition: gradients and the saved model are those of the whole one."""
    smp.init(config)

    def run_whole():
        model = build_model(Chain, keras.Model, 1)
        model(IMAGES)
        alter(model, 2)
        with tf.GradientTape() as tape:
            loss = LOSS(LABELS, model(IMAGES, training=True))
        gradients = dict(zip(names(model), map(np.array, tape.gradient(loss, model.trainable_variables))))
        return gradients, sorted(str(held(variable).tolist()) for variable in model.trainable_variables), float(loss)

    expected, values, loss_expected = once(run_whole)
    model = build_model(Chain, smp.DistributedModel, 1 + smp.rdp_rank())
    optimizer = keras.optimizers.SGD(0.1)
    x, y = (np.split(array, smp.rdp_size())[smp.rdp_rank()] for array in (IMAGES, LABELS))

    def call_one():
        @smp.step
        def step(x, y):
            loss = LOSS(y, model(x, training=True))
            return optimizer.get_gradients(loss, model.trainable_variables), loss

        return tf.function(lambda x, y: results(step(x, y)))(tf.constant(x), tf.constant(y))

    call_one()
    alter(model, 2 + smp.rdp_rank())
    gradients, loss = call_one()
    own_names = names(model)
    for gradient, place in zip(map(np.array, gradients), own_names, strict=True):
        assert np.allclose(gradient, expected[place], rtol=1e-10, atol=1e-14), place
    losses = smp.allgather(float(loss), smp.CommGroup.RDP_GROUP)
    assert abs(np.mean(losses) - loss_expected) < 1e-12, (losses, loss_expected)
    assert sorted(sum(smp.allgather(own_names, smp.CommGroup.PP_GROUP), [])) == sorted(expected), own_names
    everyone = {id(variable): variable for layer in model._flatten_layers() for variable in layer.variables}.values()
    assert sum(held(variable).size > 0 for variable in everyone) == len(own_names)  # The others are empty here.
    model.save_model(str(FOLDER / "altered"))
    smp.barrier()
    loaded = tf.saved_model.load(str(FOLDER / "altered"))
    saved_values = {str(held(variable).tolist()) for variable in loaded.trainable_variables}
    assert set(values) <= saved_values, "the saved model lacks values"
    print(f"rank {smp.rank()}: altered: gradients are equal for {len(own_names)} variables", flush=True)
    smp.barrier()
    smp.shutdown()


def results(both):
    gradients, loss = both
    return [gradient.accumulate() for gradient in gradients], loss.reduce_mean()


def held(variable):
    """Return the value of *variable*: a tf.Variable, or one of Keras 3, which holds one."""
    return (variable if hasattr(variable, "read_value") else variable.value).read_value().numpy()


def bytes_held(model):
    """Return the bytes of the values of all variables of all layers, also of those of other partitions."""
    variables = {id(variable): variable for layer in model._flatten_layers() for variable in layer.variables}
    return sum(held(variable).nbytes for variable in variables.values())


def raises(text, function, *args):
    try:
        function(*args)
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"expected an error with {text!r}")


if sys.argv[2:] == ["three"]:
    for pipeline in ("interleaved", "simple"):
        compared(f"three, {pipeline}", Chain, {"partitions": 3, "microbatches": 4, "pipeline": pipeline})
        decided = decision.read(Path(os.environ["SM_OUTPUT_DATA_DIR"]) / decision.FILE)
        assert decided.method != "manual" and not decided.is_edited
        smp.barrier()
        smp.shutdown()
    print("all checked", flush=True)
    sys.exit(0)

raises("only the PyTorch half has it", smp.init, {"partitions": 4, "ddp": True})
raises("expected horovod true", smp.init, {"partitions": 2})


def by_hand():
    """Four partitions by hand."""
    model, _ = compared(
        "nested", Nested, {"partitions": 4, "microbatches": 4, "auto_partition": False, "default_partition": 0}
    )
    own_bytes = sum(held(variable).nbytes for variable in model.variables)
    assert 0 < bytes_held(model) == own_bytes, (bytes_held(model), own_bytes)
    lines = (
        (Path(os.environ["SM_OUTPUT_DATA_DIR"]) / f"modelparallel/timeline-{smp.rank()}.jsonl").read_text().splitlines()
    )
    step = json.loads(lines[0])
    assert step["parameter_bytes"] == own_bytes and step["path"] == "graph" and step["pp_rank"] == smp.pp_rank(), step
    kinds = [(span["kind"], span["microbatch"]) for span in step["spans"]]
    assert {(kind, microbatch) for kind in ("forward", "backward") for microbatch in range(4)} <= set(kinds), kinds
    assert all(a["end_ns"] <= b["begin_ns"] for a, b in zip(step["spans"], step["spans"][1:]))
    assert decision.read(Path(os.environ["SM_OUTPUT_DATA_DIR"]) / decision.FILE).method == "manual"
    raises("outside a step", model, IMAGES)

    forward = smp.step(lambda x: scores(model(x, training=False)))
    outputs = forward(IMAGES)
    assert outputs.concat().shape == (16, 4) and outputs.stack().shape == (4, 4, 4) and len(outputs.outputs) == 4
    everyone = smp.allgather(np.array(outputs.merge()), smp.CommGroup.MP_GROUP)
    assert all(np.array_equal(copy, everyone[0]) for copy in everyone)
    for method in ("variable", "add_n", "accumulate_n"):
        assert np.allclose(outputs.accumulate(method), outputs.reduce_mean(), rtol=1e-12)
    remaining = tf.Variable(tf.zeros([4, 4], "float64"))
    assert np.allclose(outputs.accumulate(var=remaining), outputs.reduce_mean()) and np.allclose(
        remaining, outputs.reduce_sum() / 4
    )
    raises("expected method", outputs.accumulate, "mean")
    parts = smp.step(
        lambda x, y, z, k=1: ({"x": x}, y, z, None, k, "text", [k, "b"]),
        non_split_inputs=["z"],
        input_split_axes={"y": 1},
    )
    actual = parts(IMAGES, IMAGES.T, IMAGES)
    assert [pieces[3].shape for pieces in (actual[0]["x"], *actual[1:3])] == [(4, 6), (6, 4), (16, 6)]
    assert list(actual[3:]) == [None, [1] * 4, ["text"] * 4, [[1, "b"]] * 4], actual[3:]
    assert len(actual[1]) == 4 and [piece.shape for piece in actual[1]] == [(6, 4)] * 4
    raises("expected a batch that the 4 microbatches divide", forward, IMAGES[:6])
    raises("found 'nobody'", smp.step(non_split_inputs=["nobody"]), lambda x: x)
    raises("jit_compile", smp.step(jit_compile=True), lambda x: x)
    smp.shutdown()


def chain():
    """Four partitions of a chain, decided by the partitioner; gradients from a tape; more microbatches than ranks."""
    # Keras 3 takes the same way, with fewer: each microbatch takes a rank a fifth of a second to trace.
    most = 16 if keras.__name__.startswith("tf_keras") or "tf_keras" in sys.modules else 4
    model, _ = compared("chain", Chain, {"partitions": 4, "microbatches": most, "pipeline": "simple"}, tape=True)
    smp.barrier()
    smp.shutdown()


if sys.argv[2:] != ["short"]:
    by_hand()
    chain()

# Two replicas of two partitions; checkpoints.
two = {"partitions": 2, "microbatches": 2, "horovod": True}
model, optimizer = compared("replicas", Chain, two)


def checkpoints(model, optimizer, count):
    return smp.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer, count=count),
        str(FOLDER / "kept"),
        max_to_keep=2,
        checkpoint_name="state",
    )


count = tf.Variable(7)
optimizer.apply_gradients([(tf.ones(variable.shape, "float64"), variable) for variable in model.trainable_variables])
for _ in range(3):
    saved = checkpoints(model, optimizer, count).save()
assert saved.endswith("state-3") and len(list((FOLDER / "kept").glob("*.index"))) == 4
values_before = dict(zip(names(model), [np.array(variable) for variable in model.trainable_variables]))
values_before = {key: value for rank_values in smp.allgather(values_before) for key, value in rank_values.items()}
model.save_model(str(FOLDER / "whole"))
smp.barrier()
assert 0 < bytes_held(model) < sum(value.nbytes for value in values_before.values())
loaded = tf.saved_model.load(str(FOLDER / "whole"))
assert sorted(str(held(v).tolist()) for v in loaded.trainable_variables) == sorted(
    str(v.tolist()) for v in values_before.values()
)
smp.shutdown()

# Keras's fit: two partitions, the losses of the whole model; a layer's penalty counts where the layer is.
smp.init({"partitions": 2, "microbatches": 2, "horovod": True})


class Penalized(Chain):
    def make(self):
        super().make()
        self.body.add(Dense(8, kernel_regularizer=keras.regularizers.L2(0.1)))

    @property
    def metrics(self):
        return super().metrics[::-1]  # A script's own order: the first is not the mean of the losses.


def fitted(model):
    """Return the losses, the accuracies and the predictions of *model*, trained and evaluated by Keras."""
    model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy"])
    history = model.fit(IMAGES, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    evaluated = model.evaluate(IMAGES, LABELS, batch_size=8, verbose=0, return_dict=True)
    losses, accuracies = [*history["loss"], evaluated["loss"]], [*history["accuracy"], evaluated["accuracy"]]
    return losses, accuracies, model.predict(IMAGES, verbose=0)


expected = once(lambda: fitted(build_model(Penalized, keras.Model, 5)))
model = build_model(Penalized, smp.DistributedModel, 5)
actual = fitted(model)
assert len(model.trainable_variables) < 12 and np.allclose(actual[2], expected[2], rtol=1e-10)
assert np.allclose(actual[1], expected[1]) and np.allclose(actual[0], expected[0]) == (len(model.losses) == 1)
assert sorted(smp.allgather(len(model.losses), smp.CommGroup.PP_GROUP)) == [0, 1]
smp.barrier()
smp.shutdown()

if sys.argv[2:] != ["short"]:
    altered(two)

# It goes on with four partitions, decided by a file that the first job wrote.
smp.init({"partitions": 4, "microbatches": 1})
model, count, optimizer = (
    build_model(Chain, smp.DistributedModel, 9),
    tf.Variable(0),
    keras.optimizers.SGD(0.1, momentum=0.5),
)
assert checkpoints(model, optimizer, count).restore() == 3
hooked = []
model.register_post_partition_hook(lambda: hooked.append(smp.pp_rank()))
smp.step(lambda x: model(x))(IMAGES)
assert int(count) == 7 and hooked == [smp.pp_rank()]
assert all(
    np.array_equal(values_before[place], np.array(v)) for place, v in zip(names(model), model.trainable_variables)
)
smp.barrier()
smp.shutdown()

smp.init({"partitions": 4, "partition_file": os.environ["SM_OUTPUT_DATA_DIR"] + "/partition.json"})
other = build_model(Nested, smp.DistributedModel, 1)
raises("expected a decision for this model", smp.step(lambda x: scores(other(x))), IMAGES)
smp.barrier()
print(f"rank {smp.rank()}: all checked", flush=True)
