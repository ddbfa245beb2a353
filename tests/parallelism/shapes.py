"""Ten models as the partitioner sees them: sizes of real ones, times as a processor of 1e11 operations/s would take."""

from collections.abc import Callable

from toolkit.parallelism.tree import Module

FLOAT = 4


def leaf(name: str, weights: int, *, out: int, operations: float = 0.0, into: int = 0, **more: object) -> Module:
    """Return a module without children: *weights* parameters, *into* and *out* floats in and out."""
    into = into or out
    return Module(
        name=name,
        kind="Linear",
        parameter_bytes=weights * FLOAT,
        activation_bytes=out * FLOAT,
        input_bytes=into * FLOAT,
        output_bytes=out * FLOAT,
        compute_s=3 * operations / 1e11 + 1e-5,
        **more,  # type: ignore[arg-type]
    )


def over(name: str, children: list[Module], *, sequential: bool = False, calls: int = 1) -> Module:
    """Return a module over *children*, which costs nothing by itself."""
    return Module(
        name=name,
        kind="Sequential" if sequential else "Block",
        parameter_bytes=sum(child.parameter_bytes for child in children),
        activation_bytes=sum(child.activation_bytes for child in children),
        input_bytes=children[0].input_bytes,
        output_bytes=children[-1].output_bytes,
        compute_s=sum(child.compute_s for child in children),
        calls=calls,
        sequential=sequential,
        children=tuple(children),
    )


def dense(name: str, inside: int, outside: int, rows: int) -> Module:
    """Return a linear layer on *rows* rows."""
    return leaf(
        name, inside * outside, into=rows * inside, out=rows * outside, operations=2.0 * rows * inside * outside
    )


def block(name: str, width: int, rows: int, experts: int = 0) -> Module:
    """Return a transformer layer; with *experts*, a mixture of so many in place of its second half."""
    attention = over(
        f"{name}.attn",
        [dense(f"{name}.attn.qkv", width, 3 * width, rows), dense(f"{name}.attn.out", width, width, rows)],
    )
    if experts:
        count = rows // experts
        inner = [
            over(
                f"{name}.experts.{index}",
                [
                    dense(f"{name}.experts.{index}.up", width, 4 * width, count),
                    dense(f"{name}.experts.{index}.down", 4 * width, width, count),
                ],
            )
            for index in range(experts)
        ]
        mlp = over(f"{name}.experts", inner, calls=0)
    else:
        mlp = over(
            f"{name}.mlp",
            [
                dense(f"{name}.mlp.up", width, 4 * width, rows),
                leaf(f"{name}.mlp.act", 0, out=4 * rows * width, operations=4.0 * rows * width),
                dense(f"{name}.mlp.down", 4 * width, width, rows),
            ],
        )
    return over(name, [leaf(f"{name}.norm", 2 * width, out=rows * width), attention, mlp])


def decoder(layers: int, width: int, vocabulary: int, rows: int, *, tied: bool, experts: int = 0) -> Module:
    """Return a language model; *tied*: its head is the embedding."""
    head = dense("head", width, vocabulary, rows)
    if tied:
        head = leaf(
            "head",
            0,
            into=rows * width,
            out=rows * vocabulary,
            operations=2.0 * rows * width * vocabulary,
            shares=("embed",),
        )
    embed = leaf("embed", width * vocabulary, into=rows, out=rows * width, shares=("head",) if tied else ())
    layer = over("h", [block(f"h.{index}", width, rows, experts) for index in range(layers)], calls=0)
    return over("", [embed, layer, leaf("norm", 2 * width, out=rows * width), head])


def convolutions(stages: list[tuple[int, int, int]], classes: int, *, chain: bool) -> Module:
    """Return a CNN of (channels, size of the picture, layers) stages."""
    children, channels_in = [], 3
    for number, (channels, size, layers) in enumerate(stages):
        inner = []
        for index in range(layers):
            out = channels * size * size
            weights = channels_in * channels * 9
            name = f"s{number}.{index}"
            inner.append(
                leaf(name, weights, into=channels_in * size * size, out=out, operations=2.0 * weights * size * size)
            )
            channels_in = channels
        children.append(over(f"s{number}", inner, sequential=True))
    size = stages[-1][1]
    children.append(leaf("pool", 0, out=channels_in * 49, into=channels_in * size * size))
    children.append(dense("fc", channels_in * 49, classes, 1))
    return over("", children, sequential=chain)


def perceptron() -> Module:
    """Return a chain of eight pairs of a linear layer and an activation."""
    layers: list[Module] = []
    for index in range(8):
        layers.append(dense(str(2 * index), 1024, 1024, 256))
        layers.append(leaf(str(2 * index + 1), 0, out=256 * 1024, operations=256.0 * 1024))
    return over("", layers, sequential=True)


def recommender() -> Module:
    """Return a model whose parameters are embedding tables of very uneven sizes."""
    sizes = [1_000_000, 300_000, 120_000, 40_000, 40_000, 9_000, 2_000, 300, 50, 10]
    tables = [leaf(f"tables.{index}", size * 64, into=2048, out=2048 * 64) for index, size in enumerate(sizes)]
    top = [dense("top.0", 715, 512, 2048), dense("top.1", 512, 256, 2048), dense("top.2", 256, 1, 2048)]
    return over("", [over("tables", tables, calls=0), over("top", top, sequential=True)])


def translator() -> Module:
    """Return an encoder beside a decoder, with one embedding for both and the head."""
    embed = leaf("encoder.embed", 32_000 * 512, into=512, out=512 * 512, shares=("decoder.embed", "head"))
    encoder = over("encoder", [embed, *(block(f"encoder.{index}", 512, 512) for index in range(3))])
    again = leaf("decoder.embed", 0, into=512, out=512 * 512, shares=("encoder.embed", "head"))
    layers = [
        over(f"decoder.{index}", [block(f"decoder.{index}.own", 512, 512), block(f"decoder.{index}.cross", 512, 512)])
        for index in range(2)
    ]
    head = leaf(
        "head", 0, into=512 * 512, out=512 * 32_000, operations=2.0 * 512 * 512 * 32_000, shares=("encoder.embed",)
    )
    return over("", [encoder, over("decoder", [again, *layers]), head])


SHAPES: dict[str, Callable[[], Module]] = {
    "gpt2": lambda: decoder(6, 768, 50_257, 1024, tied=True),
    "gpt2-medium": lambda: decoder(7, 1024, 50_257, 1024, tied=True),
    "small-llama": lambda: decoder(7, 2048, 32_000, 2048, tied=False),
    "wide-vocabulary": lambda: decoder(4, 512, 250_000, 512, tied=False),
    "mixture-of-experts": lambda: decoder(3, 512, 32_000, 2048, tied=False, experts=3),
    "translator": translator,
    "vgg": lambda: convolutions(
        [(64, 224, 2), (128, 112, 2), (256, 56, 3), (512, 28, 3), (512, 14, 3)], 4096, chain=True
    ),
    "uneven-cnn": lambda: convolutions([(32, 128, 1), (64, 64, 1), (256, 32, 4), (1024, 8, 1)], 1000, chain=False),
    "perceptron": perceptron,
    "recommender": recommender,
}
