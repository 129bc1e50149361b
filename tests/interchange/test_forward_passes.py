"""Library models beside their own passes, by ``benchmarks.forwards`` and ``.transformers``."""

import pytest

pytest.importorskip("torch")
forwards = pytest.importorskip("benchmarks.forwards")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT2Model", "T5EncoderModel", "DeiTModel"])
def test_every_block_of_transformers(name: str) -> None:
    """q, token cosine, c and both modes of gradients: 4.5 standard errors or 1.5 %."""
    pytest.importorskip("transformers")
    blocks = pytest.importorskip("benchmarks.transformers")
    (model,) = (m for m in blocks.MODELS if m.name == name)
    found = [*blocks.compared(model, 30)]
    assert len(found) == 30 and not any(one.far for one in found), found
