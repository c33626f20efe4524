"""Pre-tokenizers: splitting a text into words before merging, by the names of `tokenizer.ggml.pre`.

Names and meanings are llama.cpp's, whose patterns for some models differ from the original ones for
letters beyond ASCII, or for spaces.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is split into words before merging.

    patterns        regular expressions (Oniguruma), each applied to the last one's pieces; matches
                    and the gaps between them are pieces
    ignore_merges   a word that is a token is not split, even if no merges produce it
    add_bos         BOS is added unless the file disables it
    characters      characters are merged, not bytes
    spaces          spaces become ▁ before merging
    line_breaks     a run of line breaks that is a token is not split
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    characters: bool = False
    spaces: bool = False
    line_breaks: bool = False


def _class(ranges: str) -> str:
    """The inside of a character class, from code points in hexadecimal."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in _ends(ranges))


def code_points(ranges: str) -> list[str]:
    """All code points in the ranges."""
    return [chr(i) for first, last in _ends(ranges) for i in range(first, last + 1)]


def _ends(ranges: str) -> Iterator[tuple[int, int]]:
    for each in ranges.split():
        first, _, last = each.partition("-")
        yield int(first, 16), int(last or first, 16)


_SPACES: Final = r"\s+(?!\S)|\s+"
_LINES: Final = r"\s*[\r\n]+|" + _SPACES
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES


def _cl100k(digits: str) -> str:
    """The pattern of Llama 3, Qwen 2 and others, with a pattern for numbers."""
    return "|".join((_SHORT, _WORD, digits, _MARKS, _LINES))


_LLAMA3: Final = _cl100k(r"\p{N}{1,3}")
_QWEN2: Final = _cl100k(r"\p{N}")
_QWEN35: Final = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+"
)
_JAIS2: Final = _LLAMA3.removesuffix(_SPACES) + "|".join(
    [*(rf"\s{{{2**i}}}(?!\S)" for i in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s{1}"]
)


def _cased(digits: str, short: str, letters: str = r"\p{L}") -> str:
    """Words split where lower case changes to upper case; letters beyond ASCII count as both."""
    first, upper, lower = r"[^\r\n\p{L}\p{N}]?", rf"[{letters}&&[^a-z]]", rf"[{letters}&&[^A-Z]]"
    words = f"{first}{upper}*{lower}+{short}", f"{first}{upper}+{lower}*{short}"
    return "|".join((*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _LINES))


def _marked(digits: str) -> str:
    """Words of letters and combining marks, in any case."""
    word = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" f"{_SHORT}?"
    return "|".join((word, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _LINES))


# Numbers in groups of three from their end. Text before a number is in one piece with its first
# group of one to three digits; the start of a number is checked once, so time is linear.
_THREES: Final = (
    r"(?!(?<=\p{N})\p{N})(?>\P{N}*)\p{N}{1,2}(?=(?>(?:\p{N}{3})*)(?!\p{N}))"
    r"|(?>\P{N}*)\p{N}{3}|\P{N}+"
)
# The same for ASCII digits in runs of numbers of any script; all else stays together.
_NO_THREE: Final = r"(?:[^0-9]|(?<![0-9])[0-9]{1,2}(?=(?>(?:[0-9]{3})*)(?![0-9])))++"
_ASCII_THREES: Final = rf"{_NO_THREE}|[0-9]{{3}}(?:{_NO_THREE})?"
# From U+8C48 on, where U+F900 is meant: llama.cpp's source has that letter in normalized form.
_ASIAN: Final = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_YOUTU: Final = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-"
    "\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_EXAONE_MOE: Final = "|".join(
    (
        _SHORT,
        r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
        r"\s*[\r\n]",
        _SPACES,
    )
)
_CHAMELEON: Final = (
    r"<sentinel:[0-9]+>",
    r"IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_NEWLINES: Final = r"[^\n]+|\n+"

_HAN: Final = (  # a subset of Unicode's \p{Han}
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
_KIMI_K2: Final = (
    _HAN
    + "+|"
    + _LLAMA3.removeprefix(f"{_SHORT}|").replace(
        _WORD, rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_SHORT}?"
    )
)

# BLOOM: runs without spaces and punctuation marks (of ASCII and other scripts).
_BLOOM: Final = r" ?[^(\s|[.,!?" "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c" r"])]+"

PUNCTUATION: Final = r"[\p{P}$+<=>^~|`]+"  # Unicode's, and the symbols among ASCII's

# DeepSeek: letters of alphabets with cases; Chinese, Japanese and Korean separately, by code
# points.
_ALPHABETS: Final = (
    "B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B "
    "1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 "
    "2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A "
    "10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943 "
)
_CJK: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&" r"\S]+"
_KANA: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_LLM: Final = (
    "[\r\n]",
    r"\s?[A-Za-z" + _class(_ALPHABETS) + "]+",
    r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002&&" r"\S]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
_DEEPSEEK_V3_WORDS: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES
)
_DEEPSEEK_V3: Final = (r"\p{N}{1,3}", _KANA, _DEEPSEEK_V3_WORDS)
_SPARK: Final = (
    *_DEEPSEEK_V3[:2],
    _DEEPSEEK_V3_WORDS.replace(r"+[\r\n]*|\s*[\r\n]+|", r"+|[\r\n]|"),
    r"\p{N}",
)

# Names of `tokenizer.ggml.pre`, grouped as llama.cpp groups them.
_FAMILIES: Final[tuple[tuple[PreTokenizer, str], ...]] = (
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 jina-v5-nano lfm2 midm-2.0 pixtral",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((_LLAMA3,), ignore_merges=True), "glm4 glm5"),
    (PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), ignore_merges=True), "minicpm5"),
    (PreTokenizer((_JAIS2,)), "jais-2"),
    (
        PreTokenizer((_QWEN2,)),
        "qwen2 deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo megrez solar-open stablelm2",
    ),
    (PreTokenizer((_QWEN35,)), "qwen35"),
    (PreTokenizer((_NEWLINES, _QWEN2)), "laguna"),
    (PreTokenizer((_QWEN2.removeprefix(f"{_SHORT}|"),)), "ufakzeka"),
    (
        PreTokenizer((_QWEN2.replace(_MARKS, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
        "seed-coder",
    ),
    (
        PreTokenizer(
            (_QWEN2.replace(_SHORT, r"'(?i:[sdmt]|ll|ve|re)").replace(r"*[\r\n]+|", r"*[\r\n]|"),)
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 a.x-4.0 exaone4 gigachat granite-docling jais jina-de jina-es jina-v2-de jina-v2-es"
        " jina-v1-en jina-v2-code mellum modern-bert mpt olmo phi-2 roberta-bpe trillion",
    ),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "smollm codeshell command-r exaone mellum2 minerva-7b refact starcoder",
    ),
    (PreTokenizer((_cased(r"\p{N}", ""),), ignore_merges=True, add_bos=True), "tekken"),
    (
        PreTokenizer((_cased(r"\p{N}{1,3}", f"{_SHORT}?"),)),
        "gpt-4o kanana2 llama4 minimax-m2 talkie",
    ),
    (PreTokenizer((_KIMI_K2,)), "kimi-k2"),
    (PreTokenizer(_DEEPSEEK_LLM), "deepseek-llm"),
    (
        PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
        "deepseek-coder",
    ),
    (PreTokenizer(_DEEPSEEK_V3), "deepseek-v3 hunyuan-dense hy_v4 joyai-llm"),
    (PreTokenizer((_BLOOM,)), "bloom gpt3-finnish poro-chat"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
    (PreTokenizer((PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (PreTokenizer(_SPARK), "spark2_5"),
    (PreTokenizer((_YOUTU, _marked(r"\p{N}")), ignore_merges=True), "youtu"),
    (PreTokenizer((_THREES, _marked(r"\p{N}{1,3}"))), "tiny_aya cohere2moe"),
    (PreTokenizer((_THREES, _ASIAN, _DEEPSEEK_V3_WORDS)), "afmoe"),
    (PreTokenizer((r"\p{N}+", _ASCII_THREES)), "superbpe"),
    (PreTokenizer((_EXAONE_MOE,)), "exaone-moe"),
    (
        PreTokenizer((_cased(r"\p{N}{1,3}", f"{_SHORT}?", r"\p{L}\p{M}"),), ignore_merges=True),
        "granite-embed-multi-97m",
    ),
    (PreTokenizer(_CHAMELEON, add_bos=True), "chameleon"),
    (
        PreTokenizer((_NEWLINES,), add_bos=True, characters=True, spaces=True, line_breaks=True),
        "gemma4 granite-embed-multi-311m",
    ),
    (PreTokenizer((_NEWLINES,), characters=True, spaces=True), "sarvam-moe"),
    (PreTokenizer((r"\S+",), characters=True), "whitespace"),
)
PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    name: family for family, names in _FAMILIES for name in names.split()
}

# Code points assigned since Unicode 16. llama.cpp's tables are of version 15.1, where these are
# neither letters, numbers nor marks; the library's are newer.
AFTER_UNICODE_15: Final = (
    "897 1B4E-1B4F 1B7F 1C89-1C8A 2427-2429 31E4-31E5 A7CB-A7CD A7DA-A7DC 105C0-105F3 "
    "10D40-10D65 10D69-10D85 10D8E-10D8F 10EC2-10EC4 10EFC 11380-11389 1138B 1138E 11390-113B5 "
    "113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D5 113D7-113D8 113E1-113E2 116D0-116E3 "
    "11BC0-11BE1 11BF0-11BF9 11F5A 13460-143FA 16100-16139 16D40-16D79 18CFF 1CC00-1CCF9 "
    "1CD00-1CEB3 1E5D0-1E5FA 1E5FF 1F8B2-1F8BB 1F8C0-1F8C1 1FA89 1FA8F 1FABE 1FAC6 1FADC 1FADF "
    "1FAE9 1FBCB-1FBEF"
)


def with_llama_cpp_classes(pattern: str) -> str:
    """A pattern with character classes as in llama.cpp's version of Unicode."""
    known = rf"[\\p{{\1}}&&[^{_class(AFTER_UNICODE_15)}]]"
    pattern = re.sub(r"\\p\{(\w)\}", known, pattern)
    return re.sub(r"\\P\{(\w)\}", known.replace("[", "[^", 1), pattern)
