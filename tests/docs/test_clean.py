"""The cleaning example on a toy web of good texts, planted duplicates and junk of each kind."""

import gzip
import importlib
import json
import sys

import pytest

from bigbird_ja.text.corpus import open_corpus
from testkit import ROOT

pytest.importorskip(
    "datatrove", reason="cleaning needs datatrove (docs/examples/clean.py says how)"
)
sys.path.insert(0, str(ROOT / "docs/examples"))
clean = importlib.import_module("clean")

LAKE = (
    "琵琶湖は滋賀県にある日本で最も大きな湖である。面積は約六百七十平方キロメートルで、県のお"
    "よそ六分の一を占めている。湖の水は瀬田川から流れ出し、宇治川、淀川と名前を変えながら大阪"
    "湾に注ぐ。古くから京都へ物を運ぶ道として使われ、湖のまわりには港町が栄えた。\n"
    "今では近畿の人々の飲み水を支えており、水質を守るために、合成洗剤の使用を減らす運動が一九"
    "七〇年代に始まった。"
)
TOFU = (
    "豆腐を作るには、まず大豆を一晩水につけておく。よくふくらんだ豆を水と一緒にすりつぶし、大"
    "きな鍋で焦がさないように煮る。煮えたものを布でこすと、豆乳とおからに分かれる。\n"
    "温かい豆乳ににがりを少しずつ加えて静かに混ぜると、しだいに固まり始める。それを型に入れて"
    "重しをのせ、しばらく置いてから水にさらせば出来上がりである。"
)
DIARY = (
    "昨日、会社の帰りに駅前の古本屋へ寄ってみた。店の奥に積まれた雑誌の中から、子供のころに読"
    "んでいた天文の本が見つかって驚いた。値段は三百円で、少し日に焼けていたが、星座の図はきれ"
    "いなままだった。\n"
    "家に帰って娘に見せると、夏の大三角を探したいと言うので、週末は二人で川原へ出かけることに"
    "した。"
)
NEARLY = LAKE.replace("約六百七十", "およそ六百七十")
CHINESE = (
    "琵琶湖位于日本滋贺县，是日本最大的湖泊，面积约六百七十平方公里。湖水经濑田川流出，最后注"
    "入大阪湾。"
)
ENGLISH = "Lake Biwa (びわこ) is the largest lake in Japan. It gives water to Kyoto and Osaka."
SPAM = "激安の通販ならここで買うのがお得です。" * 30
MENU = "\n".join(
    (
        "ホームへ戻る 会社のご案内 お問い合わせはこちら 商品をさがす "
        "よくある質問と答え 採用に関する情報 地図とアクセス サイトの使い方 "
        "新着のニュース 利用規約を読む 送料について カートを見る"
    ).split()
)
KEYWORDS = (
    "アルバイト、エアコン、カーテン、キーボード、クッション、ケーブル、コーヒー、サプリメント、シャンプー、"
    "スニーカー、セーター、ソファー、テーブル、トースター、ナイフ、ネクタイ、バッグ、ヒーター、フライパン、"
    "ベッド、ポスター、マグカップ、ミシン、メガネ、ライト、リュック、レンズ、ロープ、ワイン、ドレス。"
)


@pytest.fixture
def web(tmp_path):
    """A folder of two files, one of them packed."""
    folder = tmp_path / "web"
    folder.mkdir()
    files = {
        "a.jsonl": [LAKE, CHINESE, TOFU, SPAM],
        "b.jsonl.gz": [MENU, NEARLY, DIARY, KEYWORDS, ENGLISH, DIARY],
    }
    for name, texts in files.items():
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": t, "url": "example.org"}) + "\n" for t in texts)
    return folder


def removed(output):
    """The texts that each rule removed."""
    texts = {}
    for rule in clean.REMOVED:
        files = (output / "removed" / rule).glob("*.jsonl.gz")
        lines = b"".join(gzip.decompress(f.read_bytes()) for f in files).splitlines()
        texts[rule] = {json.loads(line)["text"] for line in lines}
    return texts


def test_one_of_each_good_text_stays_and_junk_is_filed_under_its_rule(
    web, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "cleaned"
    call = ["clean", f"--input={web}", f"--output={output}", "--workers=1"]
    monkeypatch.setattr(sys, "argv", call)
    clean.main()
    printed = capsys.readouterr().out
    assert printed.startswith("text: 3 documents\nremoved/language: 2 documents\n")
    texts = list(open_corpus([str(output / "text")]).texts())  # as make-data reads them
    lake = next(t for t in texts if t in {LAKE, NEARLY})
    assert sorted(texts) == sorted([lake, TOFU, DIARY])
    assert removed(output) == {
        "language": {CHINESE, ENGLISH},
        "repetition": {SPAM},
        "lines": {MENU},
        "words": {KEYWORDS},
        "duplicates": {LAKE, NEARLY, DIARY} - {lake},
    }
    clean.main()  # what is finished is not done again
    assert capsys.readouterr().out == printed
    (web / "a.jsonl").write_text('{"text": "別の文書"}\n', "utf-8")
    with pytest.raises(SystemExit, match="begun with other files"):
        clean.main()


def test_nothing_there_and_nothing_left_are_said(web, tmp_path, monkeypatch):
    for given, said in ((tmp_path / "none", "no .jsonl"), (tmp_path / "junk.jsonl", "no document")):
        (tmp_path / "junk.jsonl").write_text(json.dumps({"text": ENGLISH}) + "\n", "utf-8")
        call = ["clean", f"--input={given}", f"--output={tmp_path / 'out'}", "--workers=1"]
        monkeypatch.setattr(sys, "argv", call)
        with pytest.raises(SystemExit, match=said):
            clean.main()
