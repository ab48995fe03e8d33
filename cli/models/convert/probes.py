# ruff: noqa: RUF001 (characters that look like others are meant)
"""Texts on which rules that cut words differ: digits, contractions, capitals, scripts, spaces and breaks."""

PROBES = (
    "The quick brown fox's tail wasn't caught; they'll say WE'VE lost, DON'T they?",
    "1 12 123 1234 12345 3.14159 1,000,000 2024-11-22 ² ³ ½ ٣٤٥ १२३ Ⅷ",
    "a  b   c    d \t e\t\tf\n\ng\r\nh \n i   \n\n   j \r k  ",
    "   leading and trailing   ",
    "helloWorld HTTPServer iPhone XMLHttpRequest camelCase snake_case kebab-case ALLCAPS Ǆungla",
    "!!! ??? ... --- === // /* */ #include <a.h> $x = @y[0]; ~`^|\\ {}[]() \"quoted\" 'single' a/b/c/\n/\n",
    "def f(x: int = 0x1F) -> dict[str, int]:\n\treturn {'a': x ** 2}\n\n\n# end\n",
    "Größe naïve façade señor Łódź İstanbul ẞ ﬁ e\u0301 Å Ё Привет, мир! Καλημέρα κόσμε",
    "你好，世界！这是测试。龍馬〇㈱２０ こんにちはカタカナｶﾅ 안녕하세요 세계 ㅋㅋ",
    "שלום עולם בְּרֵאשִׁית مرحبا بالعالم السَّلَامُ हिन्दी में க் தமிழ் ไทยภาษา កម្ពុជា",
    "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽❤️🇫🇷1️⃣ \u200b\u00a0\u3000x\u2028y \ufeff \x00\x07 …。，、।۔،",
    "https://example.com/a?b=c%20d&e[]=1#f user@host.org C:\\Windows\\x ../../y",
)
