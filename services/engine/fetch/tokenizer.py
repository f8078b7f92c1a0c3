"""A GGUF vocabulary as a `tokenizers` file. Owns the translation of pre-tokenizer names; encodes nothing itself.

Source:  GGUF keeps tokens, ranks and the *name* of the pre-tokenizer; what the name means is listed here. "smollm":
         every numeral stands alone, then GPT-2's byte-level pattern.
"""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from contracts.errors import SetupError
from engine.weights.gguf import Vocabulary

_NORMAL, _CONTROL = 1, 3


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer whose to_str() is tokenizer.json; control tokens become special added tokens.

    Raises: SetupError naming a model, pre-tokenizer or token type that has no translation.
    """
    if vocabulary.model != "gpt2":
        raise SetupError(f"tokenizer model {vocabulary.model!r} is not supported by this version; supported: gpt2")
    if vocabulary.pre_tokenizer != "smollm":
        raise SetupError(
            f"pre-tokenizer {vocabulary.pre_tokenizer!r} is not supported by this version; supported: smollm"
        )
    _check_tokens(vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [_pair(merge) for merge in vocabulary.merges]
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    controls = zip(vocabulary.tokens, vocabulary.token_types, strict=True)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text, kind in controls if kind == _CONTROL])
    return tokenizer


def _check_tokens(vocabulary: Vocabulary) -> None:
    if len(vocabulary.tokens) != len(vocabulary.token_types):
        raise SetupError(f"{len(vocabulary.tokens)} tokens but {len(vocabulary.token_types)} token types")
    if len(set(vocabulary.tokens)) != len(vocabulary.tokens):
        raise SetupError("a token occurs twice in the vocabulary")
    others = set(vocabulary.token_types) - {_NORMAL, _CONTROL}
    if others:
        raise SetupError(
            f"token types {sorted(others)} are not supported; supported: {_NORMAL} normal, {_CONTROL} control"
        )


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise SetupError(f"merge {merge!r} is not two tokens")
    return left, right
