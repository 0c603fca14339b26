"""Generated texts in English (spaces between words) and in Chinese (no spaces)."""

import random

_WORDS = {
    "en": """
        the a small large old new river bridge garden letter teacher village winter morning opens
        closes crosses reads writes finds loses carries slowly quickly often never under over near
        behind between with without and but because while market harbor mountain library
    """.split(),
    "zh": """
        我们 他们 老师 学生 医生 北京 上海 图书馆 火车站 大学 公园 市场 昨天 今天 明天 上午 晚上
        看见 学习 工作 喜欢 认为 开始 结束 打开 关闭 一本 两个 很多 书 信 茶 电脑 手机 问题 办法
        因为 所以 但是 如果 已经 正在 非常 可能 高高兴兴 一心一意 在 从 到 和 的 了
    """.split(),
}
_SPACE = {"en": (" ", ", ", ". "), "zh": ("", "，", "。")}


def sentences_of(language, count, seed=3):
    """Yield sentences of random words. Some sentences contain a comma."""
    draw = random.Random(seed)
    space, comma, end = _SPACE[language]
    for _ in range(count):
        parts = [space.join(draw.choices(_WORDS[language], k=draw.randint(3, 7))) for _ in "ab"]
        yield comma.join(parts[: draw.randint(1, 2)]) + end.rstrip()


def documents_of(language, count, seed=3):
    """Yield documents of 20 sentences."""
    sentences = sentences_of(language, 20 * count, seed)
    for _ in range(count):
        yield _SPACE[language][0].join(next(sentences) for _ in range(20))
