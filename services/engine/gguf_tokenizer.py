"""A GGUF vocabulary as a `tokenizers` file. Owns the translation of pre-tokenizer names; encodes nothing itself.

Source:  GGUF keeps tokens, ranks and the *name* of the pre-tokenizer; what the name means is listed here. "smollm":
         every numeral stands alone, then GPT-2's byte-level pattern. "qwen35": one pattern in which marks belong to
         letters and every numeral stands alone, over text in NFC.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from contracts.errors import SetupError
from engine.weights.gguf import Vocabulary

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer whose to_str() is tokenizer.json.

    Control tokens become special added tokens, user-defined ones plain ones; unused rows at the end are left out.
    Raises: SetupError naming a model, pre-tokenizer or token type that has no translation.
    """
    if vocabulary.model != "gpt2":
        raise SetupError(f"tokenizer model {vocabulary.model!r} is not supported by this version; supported: gpt2")
    num_tokens = _check_tokens(vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens[:num_tokens])}
    merges = [_pair(merge) for merge in vocabulary.merges]
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges, fuse_unk=False, byte_fallback=False))
    _set_pre_tokenizer(tokenizer, vocabulary.pre_tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    typed = list(zip(vocabulary.tokens, vocabulary.token_types, strict=True))[:num_tokens]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text, kind in typed if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text, kind in typed if kind == _USER_DEFINED])
    return tokenizer


def _set_pre_tokenizer(tokenizer: Tokenizer, name: str) -> None:
    first: pre_tokenizers.PreTokenizer
    match name:
        case "smollm":
            first = pre_tokenizers.Digits(individual_digits=True)
        case "qwen35":
            tokenizer.normalizer = normalizers.NFC()
            first = pre_tokenizers.Split(Regex(_QWEN35_PATTERN), behavior="isolated")
        case _:
            raise SetupError(f"pre-tokenizer {name!r} is not supported by this version; supported: smollm, qwen35")
    bytes_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "smollm")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_level])


def _check_tokens(vocabulary: Vocabulary) -> int:
    """How many tokens are in use.

    Raises: SetupError for doubles, unknown types, or unused ones between others.
    """
    if len(vocabulary.tokens) != len(vocabulary.token_types):
        raise SetupError(f"{len(vocabulary.tokens)} tokens but {len(vocabulary.token_types)} token types")
    if len(set(vocabulary.tokens)) != len(vocabulary.tokens):
        raise SetupError("a token occurs twice in the vocabulary")
    num_tokens = len(vocabulary.tokens)
    while num_tokens and vocabulary.token_types[num_tokens - 1] == _UNUSED:
        num_tokens -= 1
    others = set(vocabulary.token_types[:num_tokens]) - {_NORMAL, _CONTROL, _USER_DEFINED}
    if others:
        raise SetupError(
            f"token types {sorted(others)} are not supported; supported: {_NORMAL} normal, {_CONTROL} control, "
            f"{_USER_DEFINED} user-defined, and {_UNUSED} unused at the end"
        )
    return num_tokens


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise SetupError(f"merge {merge!r} is not two tokens")
    return left, right
