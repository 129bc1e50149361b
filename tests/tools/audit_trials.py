"""Audits of correct models of transformers, timm and torchvision: none may have an error.

    python tests/tools/audit_trials.py [NAME ...]        # a table, and every finding
    python tests/tools/audit_trials.py --predicted       # predicted sizes beside means of 4 draws

The exit status is 1 where a model has an error.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
import transformers

from kcalc.lab.audit import Audit, audit

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

TEXT = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "intermediate_size": 128,
}
SHARED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
GPT = {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 256}
PAIRED = {
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 64,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "vocab_size": 256,
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 250, shape, generator=torch.Generator().manual_seed(0))


def language(family: str, head: str = "ForCausalLM", **options: Any) -> Callable[[], Any]:
    """A builder of a model of transformers from its configuration."""

    def build() -> Any:
        config = getattr(transformers, f"{family}Config")(**options)
        return getattr(transformers, f"{family}{head}")(config)

    return build


def image(name: str, **options: Any) -> Callable[[], Any]:
    """A builder of a model of timm, or of torchvision where timm does not know the name."""
    if name in timm.list_models():
        return lambda: timm.create_model(name, **options)
    return lambda: getattr(torchvision.models, name)(**options)


SMALL = (4, 3, 64, 64)
MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "gpt2": (language("GPT2", "LMHeadModel", **GPT), None),
    "gpt_bigcode": (language("GPTBigCode", **GPT), None),
    "imagegpt": (
        language(
            "ImageGPT", "ForCausalImageModeling", n_positions=64, **{**GPT, "vocab_size": 257}
        ),
        (4, 32),
    ),
    "decision_transformer": (
        language(
            "DecisionTransformer", "Model", n_layer=4, hidden_size=64, n_head=4, n_inner=128,
            state_dim=5, act_dim=3,
        ),
        {
            "states": random(4, 8, 5), "actions": random(4, 8, 3), "rewards": random(4, 8, 1),
            "returns_to_go": random(4, 8, 1), "timesteps": torch.arange(8).expand(4, 8).clone(),
        },
    ),
    "gpt_neo": (
        language(
            "GPTNeo", num_layers=4, hidden_size=64, num_heads=4, vocab_size=256,
            attention_types=[[["global", "local"], 2]], max_position_embeddings=64,
        ),
        None,
    ),
    "gpt_neox": (language("GPTNeoX", **TEXT), None),
    "gptj": (language("GPTJ", **GPT, rotary_dim=8), None),
    "opt": (
        language(
            "OPT", num_hidden_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=256,
            ffn_dim=128, word_embed_proj_dim=64,
        ),
        None,
    ),
    "bloom": (language("Bloom", n_layer=4, hidden_size=64, n_head=4, vocab_size=256), None),
    "llama": (language("Llama", **SHARED), None),
    "mistral": (language("Mistral", **SHARED), None),
    "qwen2": (language("Qwen2", **SHARED), None),
    "qwen3": (language("Qwen3", **SHARED, head_dim=16), None),
    "gemma": (language("Gemma", **SHARED, head_dim=16), None),
    "gemma2": (language("Gemma2", **SHARED, head_dim=16), None),
    "phi": (language("Phi", **SHARED), None),
    "phi3": (language("Phi3", **SHARED, pad_token_id=0), None),
    "falcon": (
        language(
            "Falcon", num_hidden_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=256
        ),
        None,
    ),
    "mixtral": (language("Mixtral", **SHARED, num_local_experts=4), None),
    "olmo2": (language("Olmo2", **SHARED, pad_token_id=0), None),
    "stablelm": (language("StableLm", **SHARED), None),
    "cohere": (language("Cohere", **SHARED), None),
    "bert": (language("Bert", "ForMaskedLM", **TEXT), None),
    "roberta": (language("Roberta", "ForMaskedLM", **TEXT), None),
    "electra": (language("Electra", "ForMaskedLM", **TEXT), None),
    "albert": (language("Albert", "ForMaskedLM", **TEXT), None),
    "distilbert": (
        language(
            "DistilBert", "ForMaskedLM", n_layers=4, dim=64, n_heads=4, hidden_dim=128,
            vocab_size=256,
        ),
        None,
    ),
    "deberta_v2": (
        language(
            "DebertaV2", "ForMaskedLM", **TEXT, pos_att_type=["c2p", "p2c"], relative_attention=True
        ),
        None,
    ),
    "t5": (
        language(
            "T5", "ForConditionalGeneration", num_layers=4, d_model=64, d_ff=128, num_heads=4,
            d_kv=16, vocab_size=256,
        ),
        None,
    ),
    "bart": (language("Bart", "ForConditionalGeneration", **PAIRED), None),
    "whisper": (
        language(
            "Whisper", "ForConditionalGeneration", **PAIRED, num_mel_bins=16,
            max_source_positions=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        ),
        {"input_features": random(2, 16, 100), "decoder_input_ids": ids(2, 16)},
    ),
    "vit": (language("ViT", "ForImageClassification", **IMAGE, num_labels=100), None),
    "beit": (language("Beit", "ForImageClassification", **IMAGE, num_labels=100), None),
    "dinov2": (
        language(
            "Dinov2", "Model", num_hidden_layers=4, hidden_size=64, num_attention_heads=4,
            image_size=32, patch_size=8,
        ),
        None,
    ),
    "swin": (
        language(
            "Swin", "ForImageClassification", image_size=64, patch_size=4, embed_dim=24,
            depths=[2, 4], num_heads=[2, 4], window_size=4, num_labels=100,
        ),
        None,
    ),
    "clip": (
        language(
            "CLIP", "Model", text_config={**TEXT, "max_position_embeddings": 32},
            vision_config=dict(IMAGE), projection_dim=32,
        ),
        {"input_ids": ids(4, 16), "pixel_values": random(4, 3, 32, 32)},
    ),
    "mamba": (
        language("Mamba", num_hidden_layers=4, hidden_size=64, vocab_size=256, state_size=8),
        None,
    ),
    "wav2vec2": (
        language(
            "Wav2Vec2", "Model", num_hidden_layers=4, hidden_size=64, num_attention_heads=4,
            intermediate_size=128, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
        ),
        (2, 4000),
    ),
    "timm vit_tiny": (image("vit_tiny_patch16_224", img_size=64, depth=4), SMALL),
    "timm deit3": (image("deit3_small_patch16_224", img_size=64, depth=4), SMALL),
    "timm beit": (
        image("beit_base_patch16_224", img_size=64, depth=4, embed_dim=64, num_heads=4),
        SMALL,
    ),
    "timm swin_tiny": (
        image(
            "swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2), embed_dim=24,
            num_heads=(1, 2, 3, 4),
        ),
        (2, 3, 224, 224),
    ),
    "timm convnext": (image("convnext_atto"), SMALL),
    "timm mixer": (image("gmixer_12_224", img_size=64), SMALL),
    "timm nf_resnet": (image("nf_resnet26"), SMALL),
    "timm regnety": (image("regnety_002"), SMALL),
    "timm efficientnet": (image("efficientnet_b0"), SMALL),
    "torchvision resnet18": (lambda: torchvision.models.resnet18(), SMALL),
    "torchvision resnet50": (lambda: torchvision.models.resnet50(), SMALL),
    "torchvision densenet121": (lambda: torchvision.models.densenet121(), SMALL),
    "torchvision mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(), SMALL),
    "torchvision vit": (lambda: torchvision.models.VisionTransformer(64, 16, 4, 4, 64, 128), SMALL),
}  # fmt: skip

WIDE: dict[str, tuple[Callable[[], Any], Any]] = {
    "gpt2": (
        language("GPT2", "LMHeadModel", n_layer=4, n_embd=512, n_head=8, vocab_size=1000),
        (4, 64),
    ),
    "llama": (
        language(
            "Llama", num_hidden_layers=4, hidden_size=512, num_attention_heads=8,
            num_key_value_heads=4, intermediate_size=1376, vocab_size=1000,
        ),
        (4, 64),
    ),
    "vit": (
        language(
            "ViT", "ForImageClassification", num_hidden_layers=4, hidden_size=512,
            num_attention_heads=8, intermediate_size=2048, image_size=64, patch_size=16,
            num_labels=1000,
        ),
        (16, 3, 64, 64),
    ),
}  # fmt: skip


def trial(name: str) -> bool:
    """Print one row and the findings. Returns: whether there is an error."""
    build, inputs = MODELS[name]
    begin = time.perf_counter()
    found = audit(build, inputs)
    seconds = time.perf_counter() - begin
    counts = [sum(f.severity == s for f in found.findings) for s in ("error", "warning")]
    loss = "-" if found.loss is None else f"{found.loss:.3f} / {found.uniform:.3f}"
    print(f"| {name} | {len(found.blocks)} | {loss} | {counts[0]} | {counts[1]} | {seconds:.1f} |")
    for finding in found.findings:
        print(f"    {finding}")
    return counts[0] > 0


def predicted(name: str) -> bool:
    """Print predicted and measured rms. Returns: whether one is off by more than 6 %."""
    build, inputs = WIDE[name]
    draws: list[Audit] = []
    for seed in range(4):
        torch.manual_seed(seed)
        draws.append(audit(build(), inputs, predict=True))
    if draws[0].remarks:
        print(name, *draws[0].remarks)
        return True

    def mean(sizes: list[float]) -> float:
        return (sum(size**2 for size in sizes) / len(sizes)) ** 0.5

    rows = [
        (block.name, mean([d.blocks[i].predicted or 0.0 for d in draws]),
         mean([d.blocks[i].stream for d in draws]))
        for i, block in enumerate(draws[0].blocks)
    ]  # fmt: skip
    logits = (
        mean([d.predicted_logits or 0.0 for d in draws]),
        mean([d.logits or 0 for d in draws]),
    )
    rows.append(("logits", *logits))
    worst = max(abs(one / other - 1) for _, one, other in rows)
    for title, one, other in (rows[0], rows[-2], rows[-1]):
        print(f"| {name} | {title} | {one:.4f} | {other:.4f} | {one / other - 1:+.1%} |")
    print(f"    largest difference {worst:.1%}")
    return worst > 0.06


def main(words: list[str]) -> int:
    """Run the trials that are named, or all."""
    if words == ["--predicted"]:
        return int(max(map(predicted, WIDE)))
    print("| model | sums | loss / ln V | errors | warnings | seconds |\n|---|---|---|---|---|---|")
    return int(max(map(trial, words or MODELS)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
