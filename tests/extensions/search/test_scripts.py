"""Search in scripts with combining marks finds a passage by its own words."""

from itertools import combinations

import pytest

from fieldcraft.extensions.search.index import build_index
from source_files import lines

SCRIPTS = {
    "Hindi": "किताब कमल काम कमरा बाल बिल बेल बोली नदी नाद दिन दान हिन्दी",
    "Tamil": "கல் கால் கிலி கீல் குல் கூலி கெலி கேலி கொலி கோலி மலை மாலை மேலை",
    "Thai": "กิน กัน กาน กีน มา ม้า หมา ข้าว ขาว เข้า เข่า ที่ ทีม",
    "Burmese": "စာ စား စာအုပ် မြို့ မြေ မာ မား လူ လေ ရေ ရွာ",
    "Khmer": "ទឹក ទូក ទី ផ្ទះ ផ្លូវ ផ្លែ",
    "Arabic with vowels": "كَتَبَ كُتُب كِتَاب كَاتِب شَمْس شُمُوس قَمَر",
    "Hebrew with points": "שָׁלוֹם שָׁלֵם סֵפֶר סַפָּר סְפָר עוֹלָם",
    "Russian": "книга книги дом дома море мор река рука",
    "Chinese": "图书 天空 江河 北京 南京",
    "beyond the basic plane": "𐌰𐌱 𐌱𐌰 𐌰𐌲 𐌲𐌱 𠀀𠀁 𠀂𠀃 𞤀𞤁 𞤁𞤀",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_passage_is_found_first_by_its_own_two_words(tmp_path, script):
    pairs = [" ".join(pair) for pair in combinations(SCRIPTS[script].split(), 2)]
    corpus = lines(tmp_path / "corpus.jsonl", *({"id": pair, "text": pair} for pair in pairs))
    found = build_index(corpus, tmp_path / "index").search(pairs, 2)
    assert [hits[0].id for hits in found] == pairs


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("قرأ كِتَابًا في المكتبة", "كتابا"),
        ("שָׁלוֹם לָעוֹלָם", "שלום"),
        ("ผมกินข้าวกับเพื่อนที่บ้านทุกวัน", "ข้าว"),
        ("mirë, cafe\u0301", "café"),
    ],
)
def test_a_word_is_found_as_people_type_it(tmp_path, text, query):
    corpus = lines(tmp_path / "corpus.jsonl", {"text": "x"}, {"text": text}, {"text": "y"})
    [[first]] = build_index(corpus, tmp_path / "index").search([query], 3)
    assert first.id == "1"
