"""JSON documents and ONNX models changed at random."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    -3,
    255,
    2**31,
    2**53 + 1,
    -(2**62),
    2**63 - 1,
    10**38,
    10**45,
    10**400,
    0.5,
    -0.25,
    1e-300,
    1e300,
    float("1e-5"),
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "pi",
    "relu",
    [],
    {},
    [[]],
    {"op": "exp", "args": [700]},
    {"rational": ["1", "3"]},
    "__import__('os')",
)
KEYS = ("reads", "layer", "op", "args", "evil", "expr", "symbol", "is", "schema", "kinks", "name")
OPERATIONS = (
    "Add",
    "Mul",
    "Pow",
    "exp",
    "log",
    "Max",
    "Min",
    "Abs",
    "Heaviside",
    "erf",
    "tan",
    "acosh",
    "atanh",
    "Piecewise",
    "asin",
    "sign",
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a document."""
    found, rows = [], [data]
    while rows:
        item = rows.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            found.append((item, key))
            if isinstance(item[key], dict | list):
                rows.append(item[key])
    return found


def tree(rng: random.Random, depth: int) -> Any:
    """A random expression tree, sensible or not."""
    if depth == 0 or rng.random() < 0.3:
        pair = [str(rng.choice(NUMBERS)), str(rng.randint(-2, 9))]
        return rng.choice(
            [
                {"symbol": "x"},
                {"constant": "pi"},
                rng.choice(NUMBERS),
                {"rational": pair},
                {"symbol": "y", "is": ["real", "negative"]},
                {"float": str(rng.choice(NUMBERS)), "digits": rng.choice((1, 30, 999))},
            ]
        )
    op = rng.choice(OPERATIONS)
    args = [tree(rng, depth - 1) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    if op == "Piecewise":
        return {
            "op": op,
            "rows": [
                {
                    "value": a,
                    "if": {
                        "rel": rng.choice(("<", "<=", ">")),
                        "args": [tree(rng, 1), tree(rng, 1)],
                    },
                }
                for a in args
            ],
        }
    return {"op": op, "args": args}


def deep(rng: random.Random) -> Any:
    """Something nested deeply."""
    item: Any = rng.choice([0, {"symbol": "x"}])
    for _ in range(rng.choice((50, 70, 200))):
        item = (
            rng.choice([[item], {"op": rng.choice(OPERATIONS), "args": [item]}, {"args": item}])
            if rng.random() < 0.02
            else {"op": "sin", "args": [item]}
        )
    return item


def copied(data: Any) -> Any:
    """A copy of a document."""
    return json.loads(json.dumps(data))


def spoil(data: Any, rng: random.Random) -> Any:
    """One change of a document."""
    spots = places(data)
    if not spots:
        return data
    home, key = rng.choice(spots)
    other_home, other_key = rng.choice(spots)
    roll = rng.random()
    if roll < 0.12 and isinstance(home, dict):
        del home[key]
    elif roll < 0.2 and isinstance(home, list):
        home.insert(key, copied(home[key]))
    elif roll < 0.35:
        home[key] = rng.choice(NUMBERS)
    elif roll < 0.5:
        home[key] = copied(rng.choice(ODD))
    elif roll < 0.65:
        home[key] = copied(other_home[other_key])
    elif roll < 0.75:
        home[key] = tree(rng, rng.randint(1, 5))
    elif roll < 0.78:
        home[key] = deep(rng)
    elif roll < 0.85 and isinstance(home, dict):
        home[rng.choice(KEYS)] = copied(other_home[other_key])
    elif isinstance(home[key], str):
        home[key] = rng.choice(
            [
                "Affine",
                "Nonlinear",
                "Sum",
                "GroupNorm",
                "n0",
                "n1",
                "input",
                home[key] * 50,
                home[key][::-1],
                "\u0000",
            ]
        )
    else:
        home[key] = [home[key]] * rng.choice((0, 1, 2, 40))
    return data


def spoilt_text(data: Any, rng: random.Random) -> str:
    """A document as text with a few changes of its structure, of its characters or both."""
    data = copied(data)
    for _ in range(rng.randint(0, 3)):
        data = spoil(data, rng)
    text = json.dumps(data) if rng.random() > 0.002 else rng.choice("[{") * 50_000
    for _ in range(rng.choice((0, 0, 1, 3))):
        at, cut = rng.randrange(len(text)), rng.randint(0, 4)
        text = (
            text[:at]
            + "".join(
                rng.choice('{}[]":,0123456789.eE-xnulltruefalse \\')
                for _ in range(rng.randint(0, 3))
            )
            + text[at + cut :]
        )
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.05 else text


def onnx_models() -> list[Any]:
    """Small models that use most of what is read."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)

    def made(text: str, shape: list[Any], held: dict[str, Any], opset: int = 17) -> Any:
        nodes = []
        for line in text.strip().splitlines():
            op, reads, makes, *rest = (part.strip() for part in line.split("|"))
            attributes = json.loads(rest[0]) if rest else {}
            nodes.append(
                helper.make_node(
                    op,
                    reads.replace("_", "").split() if reads != "-" else [],
                    makes.split(),
                    name=f"/b/{op}_{len(nodes)}",
                    **attributes,
                )
            )
        tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
        entry = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(
            nodes,
            "g",
            entry,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            tensors,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )

    def w(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    one = np.ones(4, np.float32)
    image = made(
        """
        Conv|x w b|h|{"pads": [1, 1, 1, 1], "strides": [2, 2]}
        BatchNormalization|h g z z g|n
        LeakyRelu|n|a|{"alpha": 0.1}
        Conv|a v|k|{"auto_pad": "SAME_UPPER", "group": 2}
        Add|k a|s
        MaxPool|s|p|{"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
        Resize|p e sc|r
        Concat|r r|c|{"axis": 1}
        GlobalAveragePool|c|q
        Flatten|q|f
        Dropout|f|d
        Gemm|d m z|y
    """,
        ["N", 3, 9, 8],
        {
            "w": w(4, 3, 3, 3),
            "b": w(4),
            "g": one,
            "z": 0 * one,
            "v": w(4, 2, 3, 3),
            "m": w(8, 4),
            "e": w(0),
            "sc": np.array([1, 1, 2, 2], np.float32),
        },
    )
    tokens = made(
        """
        MatMul|x w|h
        ReduceMean|h|m|{"axes": [-1]}
        Sub|h m|d
        Pow|d two|p
        ReduceMean|p|v|{"axes": [-1]}
        Add|v eps|ve
        Sqrt|ve|s
        Div|d s|n
        Mul|n g|ng
        Sigmoid|ng|sg
        Mul|ng sg|sw
        Clip|sw lo hi|cl
        Transpose|cl|t|{"perm": [0, 2, 1]}
        Softmax|t|so
        Split|so|s1 s2|{"axis": 2}
        Where|c s1 s2|y
    """,
        ["N", 4, 6],
        {
            "w": w(6, 8),
            "two": np.float32(2),
            "eps": np.float32(1e-5),
            "g": np.ones(8, np.float32),
            "lo": np.float32(-1),
            "hi": np.float32(2),
            "c": np.array([True]),
        },
    )
    folded = made(
        """
        Shape|x|s
        Gather|s i|n
        Unsqueeze|n ax|u
        Concat|u r|to|{"axis": 0}
        Reshape|x to|f
        ConstantOfShape|sz|k|{}
        Range|a i2 j|rg
        Cast|rg|rf|{"to": 1}
        ReduceMean|w|mu|{"axes": [1]}
        Sub|w mu|wc
        Transpose|wc|wt
        Expand|rf ex|xx
        Tile|rf rp|tl
        MatMul|f wt|h
        Erf|h|e
        Slice|e st en|y
    """,
        ["N", 3, 4],
        {
            "i": np.array(0),
            "ax": np.array([0]),
            "r": np.array([-1]),
            "sz": np.array([3]),
            "a": np.array(0),
            "i2": np.array(6),
            "j": np.array(1),
            "w": w(6, 12),
            "st": np.array([0]),
            "en": np.array([1]),
            "ex": np.array([3, 6]),
            "rp": np.array([2]),
        },
    )
    simple = made(
        'Gemm|x w|h\nElu|h|e|{"alpha": 0.5}\nHardSigmoid|e|k\nMul|e k|m\nInstanceNormalization|m '
        "o o|y",
        [2, 4],
        {"w": w(4, 4), "o": one},
        11,
    )
    branch = made("Relu|x|r\nNeg|r|y", [2, 4], {"c": np.array(True)})
    graphs = {
        n: helper.make_graph(
            [helper.make_node("Tanh", ["r"], ["t"])],
            n,
            [],
            [helper.make_tensor_value_info("t", 1, None)],
        )
        for n in "ab"
    }
    branch.graph.node.insert(
        1, helper.make_node("If", ["c"], ["y2"], then_branch=graphs["a"], else_branch=graphs["b"])
    )
    branch.graph.node[-1].input[0] = "y2"
    body = [helper.make_node("Relu", ["p"], ["q"]), helper.make_node("Mul", ["q", "p"], ["z"])]
    branch.functions.append(
        helper.make_function("own", "Gate", ["p"], ["z"], body, [helper.make_opsetid("", 17)])
    )
    branch.graph.node.append(helper.make_node("Gate", ["y"], ["yy"], domain="own"))
    branch.graph.output[0].name = "yy"
    branch.opset_import.append(helper.make_opsetid("own", 1))
    return [image, tokens, folded, simple, branch]


def spoil_message(proto: Any, rng: random.Random, words: list[str]) -> None:
    """One random change of a protobuf message that leaves it valid protobuf."""
    from google.protobuf.descriptor import FieldDescriptor as Field

    message = proto
    while True:
        choices = (
            list(message.DESCRIPTOR.fields)
            if rng.random() < 0.1
            else [f for f, _ in message.ListFields()]
        )
        if not choices:
            return
        field = rng.choice(choices)
        value = getattr(message, field.name)
        many = (
            not isinstance(value, str | bytes | int | float)
            and hasattr(value, "__len__")
            and not hasattr(value, "DESCRIPTOR")
        )
        if field.type != Field.TYPE_MESSAGE:
            break
        if many and (len(value) == 0 or rng.random() < 0.12):
            break
        message = rng.choice(list(value)) if many else value
        if rng.random() < 0.02:
            break
        if not message.ListFields():
            return
    if field.type == Field.TYPE_MESSAGE:
        if not many:
            proto_field = getattr(message, field.name, None)
            if proto_field is not None and hasattr(message, "ClearField"):
                message.ClearField(field.name)
        elif len(value) == 0:
            value.add()
        else:
            i, j = rng.randrange(len(value)), rng.randrange(len(value))
            roll = rng.random()
            if roll < 0.4:
                del value[i]
            elif roll < 0.7:
                value.add().CopyFrom(value[i])
            else:
                held = copy.deepcopy(value[i])
                value[i].CopyFrom(value[j])
                value[j].CopyFrom(held)
        return
    new = fresh(field, rng, words)
    try:
        if not many:
            setattr(message, field.name, new)
        elif len(value) and rng.random() < 0.7:
            i = rng.randrange(len(value))
            if rng.random() < 0.3:
                del value[i]
            else:
                value[i] = new
        else:
            value.append(new)
    except (ValueError, TypeError, OverflowError):
        return


def fresh(field: Any, rng: random.Random, words: list[str]) -> Any:
    """A random value of a field's type."""
    from google.protobuf.descriptor import FieldDescriptor as Field

    if field.type == Field.TYPE_STRING:
        return rng.choice(words)
    if field.type == Field.TYPE_BYTES:
        return rng.choice(
            [
                b"",
                b"\x00" * rng.randint(1, 400),
                b"\xff" * 16,
                rng.choice(words).encode(),
                bytes(rng.randrange(256) for _ in range(12)),
            ]
        )
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return rng.choice([0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 0.5, 3.0])
    if field.type == Field.TYPE_ENUM:
        return rng.randint(0, 30)
    return rng.choice(
        [
            0,
            1,
            -1,
            2,
            3,
            4,
            5,
            7,
            11,
            16,
            100,
            1000,
            65536,
            10**6,
            2**31 - 1,
            -(2**31),
            2**33,
            2**62,
            -(2**63),
        ]
    )


def spoilt_onnx(models: list[Any], rng: random.Random, words: list[str]) -> bytes:
    """A model with random changes, of its messages or of its bytes."""
    proto = copy.deepcopy(rng.choice(models))
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 2, 4, 10))):
            spoil_message(proto, rng, words)
        return proto.SerializeToString()
    data = bytearray(proto.SerializeToString())
    for _ in range(rng.choice((1, 2, 5, 20))):
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 1, 4))] = bytes(
            rng.randrange(256) for _ in range(rng.choice((0, 1, 1, 4)))
        )
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.15 else data)


def vocabulary(models: list[Any]) -> list[str]:
    """Words that a spoilt model may hold: names of its own, operators, paths."""
    from onnx import defs

    own = {name for m in models for n in m.graph.node for name in (*n.input, *n.output)}
    ops = sorted({schema.name for schema in defs.get_all_schemas()})
    return [
        *sorted(own),
        *ops,
        "",
        "",
        "../../etc/passwd",
        "/etc/passwd",
        "own",
        "axis",
        "perm",
        "axes",
        "location",
        "Z" * 300,
        "\u00e4",
    ]
