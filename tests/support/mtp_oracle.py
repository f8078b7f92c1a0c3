"""The MTP head in the reference library's own modules, one sequence of pairs at a time: what our head is held to."""

from typing import Any

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as family


class MtpOracle:
    """Takes the library's decoder and the head's tensors by their published names."""

    def __init__(self, decoder: Any, tensors: dict[str, torch.Tensor]) -> None:
        config = decoder.config
        self._decoder = decoder
        self._norms = {
            name: _load(family.Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps), tensors, f"mtp.{name}.")
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        }
        index = config.layer_types.index("full_attention")
        self._layer = _load(family.Qwen3_5DecoderLayer(config, index), tensors, "mtp.layers.0.")
        self._projection = tensors["mtp.fc.weight"]

    @torch.no_grad()
    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """The decoder's states [T, C] behind the final norm."""
        states: torch.Tensor = self._decoder.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        return states

    @torch.no_grad()
    def run(self, hidden: torch.Tensor, next_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs [T, C] and logits [T, vocab] of the pairs at positions 0 .. T - 1, each seeing those before it."""
        num_pairs = len(next_ids)
        embedded = self._decoder.model.embed_tokens(next_ids)
        normed = [self._norms["pre_fc_norm_embedding"](embedded), self._norms["pre_fc_norm_hidden"](hidden)]
        x = (torch.cat(normed, dim=1) @ self._projection.T)[None]
        positions = torch.arange(num_pairs)[None, None].expand(3, 1, -1)
        mask = torch.full((num_pairs, num_pairs), -torch.inf).triu(1)[None, None]
        tables = self._decoder.model.rotary_emb(x, positions)
        x = self._layer(x, position_embeddings=tables, attention_mask=mask, position_ids=positions[0])
        output = self._norms["norm"](x)[0]
        return output, self._decoder.lm_head(output)


def _load(module: Any, tensors: dict[str, torch.Tensor], prefix: str) -> Any:
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    module.load_state_dict(own)
    return module.eval()
