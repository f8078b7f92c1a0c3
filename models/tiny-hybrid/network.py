"""The network of the tiny hybrid model: configuration, MTP head, checkpoint names.

The decoder is the reference library's own; this file adds what that library leaves out, the MTP head. It reads and
writes checkpoints, and does NOT know text or losses.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers.models.qwen3_5.modeling_qwen3_5 as reference
from corpus import MATRIX_ROWS
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

FULL_PREFIX = "model.language_model."
WEIGHTS_NAME = "model.safetensors"
FP32_TENSORS = ("A_log", "dt_bias")


def text_config() -> dict[str, Any]:
    """The text part of config.json, in the family's keys."""
    return {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 384,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 32,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": MATRIX_ROWS,
    }


class MtpHead(nn.Module):
    """Predicts token t+2 from the post-norm hidden state of t and the embedding of token t+1; recycles its own output.

    Shapes: hidden [B, T, H], embedded [B, T, H], cos/sin [B, T, 64]; returns hidden [B, T, H] for the shared head.
    """

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        H = config.hidden_size
        self.pre_fc_norm_embedding = reference.Qwen3_5RMSNorm(H, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = reference.Qwen3_5RMSNorm(H, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * H, H, bias=False)
        layer = reference.Qwen3_5DecoderLayer(config, text_config()["layer_types"].index("full_attention"))
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.layers = nn.ModuleList([layer])
        self.norm = reference.Qwen3_5RMSNorm(H, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, earlier: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """One draft step; `earlier` holds keys and values of the steps before and gets this step's appended."""
        joined = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1)
        x = self.fc(joined)
        layer: Any = self.layers[0]
        x = x + self._attend(layer.self_attn, layer.input_layernorm(x), cos, sin, earlier)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        drafted: Tensor = self.norm(x)
        return drafted

    def _attend(
        self, attention: Any, x: Tensor, cos: Tensor, sin: Tensor, earlier: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        B, T, _ = x.shape
        D = attention.head_dim
        query, gate = attention.q_proj(x).view(B, T, -1, 2 * D).chunk(2, -1)
        query = attention.q_norm(query).transpose(1, 2)  # [B, Hq, T, D]
        key = attention.k_norm(attention.k_proj(x).view(B, T, -1, D)).transpose(1, 2)
        value = attention.v_proj(x).view(B, T, -1, D).transpose(1, 2)
        rotate: Any = reference.apply_rotary_pos_emb
        query, key = rotate(query, key, cos, sin)
        earlier.append((key, value))
        mixed = _attend_steps(query, earlier, self.groups)
        mixed = mixed.transpose(1, 2) * torch.sigmoid(gate)
        projected: Tensor = attention.o_proj(mixed.reshape(B, T, -1))
        return projected


def _attend_steps(query: Tensor, steps: list[tuple[Tensor, Tensor]], groups: int) -> Tensor:
    """Row t of a draft step sees rows 0..t of the first step and only row t of later ones: decoding's chain."""
    keys = [reference.repeat_kv(key, groups) for key, _ in steps]
    values = [reference.repeat_kv(value, groups) for _, value in steps]
    T, D = query.shape[-2:]
    scores = query @ keys[0].transpose(-1, -2) * D**-0.5  # [B, Hq, T, T]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    own = [(query * key).sum(-1, keepdim=True) * D**-0.5 for key in keys[1:]]
    weights = torch.cat([scores, *own], -1).softmax(-1, dtype=torch.float32).to(query.dtype)
    mixed = weights[..., :T] @ values[0]
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., T + step, None] * value
    return mixed


class HybridNetwork(nn.Module):
    """The library's decoder and our MTP head, trained together."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Qwen3_5TextConfig(**text_config() | {"attn_implementation": "eager"})
        self.decoder: Any = Qwen3_5ForCausalLM(self.config)
        self.mtp = MtpHead(self.config)

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden states after the final norm. Shapes: ids [B, T]; out [B, T, H]."""
        states: Tensor = self.decoder.model(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: hidden [B, T, H]; out [B, T, V]."""
        scores: Tensor = self.decoder.lm_head(hidden)
        return scores

    def drafts(self, hidden: Tensor, ids: Tensor, num_steps: int) -> list[Tensor]:
        """Hidden states of draft steps 1..num_steps when every token before the drafted one is the given one.

        Shapes: hidden [B, T, H], ids [B, T]; each out [B, T - num_steps, H]; row t of step s predicts token t + s + 1.
        """
        T = ids.shape[1] - num_steps
        embedded = self.decoder.model.embed_tokens(ids)
        outputs: list[Tensor] = []
        earlier: list[tuple[Tensor, Tensor]] = []
        state = hidden[:, :T]
        for step in range(num_steps):
            positions = torch.arange(step, step + T)[None].expand(3, ids.shape[0], -1)
            cos, sin = self.decoder.model.rotary_emb(state, positions)
            state = self.mtp(state, embedded[:, step + 1 : step + 1 + T], cos, sin, earlier)
            outputs.append(state)
        return outputs


def init_weights(network: HybridNetwork) -> None:
    """Fan-in scaled matrices, unit norms, and decays spread from a few tokens to about a thousand."""
    for name, parameter in network.named_parameters():
        if name.endswith("linear_attn.norm.weight"):
            nn.init.ones_(parameter)
        elif name.endswith("norm.weight") or "layernorm" in name or "pre_fc_norm" in name:
            nn.init.zeros_(parameter)
        elif name.endswith("A_log"):
            parameter.data.uniform_(1, 8).log_()
        elif name.endswith("dt_bias"):
            step = torch.exp(torch.empty_like(parameter).uniform_(-6.9, -2.3))
            parameter.data.copy_(step + torch.log(-torch.expm1(-step)))
        elif "embed_tokens" in name:
            nn.init.normal_(parameter, std=0.05)
        elif "conv1d" in name:
            nn.init.uniform_(parameter, -0.5, 0.5)
        else:
            scale = 0.3 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 0.7
            nn.init.normal_(parameter, std=scale * parameter.shape[-1] ** -0.5)


def save_checkpoint(network: HybridNetwork, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors in the family's layout and names."""
    tensors = {}
    for name, tensor in network.decoder.state_dict().items():
        if name != "lm_head.weight":  # tied
            tensors[FULL_PREFIX + name.removeprefix("model.")] = tensor
    tensors |= {f"mtp.{name}": tensor for name, tensor in network.mtp.state_dict().items()}
    stored = {
        name: tensor.to(torch.float32 if name.endswith(FP32_TENSORS) else torch.bfloat16).contiguous()
        for name, tensor in sorted(tensors.items())
    }
    save_file(stored, str(folder / WEIGHTS_NAME), metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).chmod(0o644)


def load_checkpoint(folder: Path) -> HybridNetwork:
    """The stored weights as fp32. Raises: RuntimeError (torch) naming any missing, surplus or misshapen tensor."""
    network = HybridNetwork()
    tensors = {name: tensor.float() for name, tensor in load_file(str(folder / WEIGHTS_NAME)).items()}
    mtp = {name.removeprefix("mtp."): tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    main = {
        name.replace(FULL_PREFIX, "model."): tensor for name, tensor in tensors.items() if not name.startswith("mtp.")
    }
    main["lm_head.weight"] = main["model.embed_tokens.weight"]
    network.mtp.load_state_dict(mtp)
    network.decoder.load_state_dict(main)
    return network.eval()


def write_config(folder: Path, ids: dict[str, int]) -> None:
    """config.json and generation_config.json; ids maps special tokens to their numbers."""
    stop, end = ids["<|im_end|>"], ids["<|endoftext|>"]
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "language_model_only": True,
        "tie_word_embeddings": True,
        "text_config": text_config() | {"eos_token_id": end},
    }
    generation: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    generation |= {"pad_token_id": end, "eos_token_id": [stop, end]}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
