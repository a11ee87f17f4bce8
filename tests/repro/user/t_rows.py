# mypy: ignore-errors
"""A file with a bad row far inside, empty strings and nulls of CSV, offsets in CSV times."""

from tests.repro.user.shop import Shop

with Shop("t_rows", filled=True) as shop:
    shop.shell(r"""
lakestore write --yes --create --key id t.big seed.jsonl
python - <<'P'
import json
with open("bigbad.jsonl","w") as f:
    for i in range(200_000):
        f.write(json.dumps({"id": i, "s": "x"}) + "\n")
        if i == 150_000: f.write(json.dumps({"id": None, "s": "bad"}) + "\n")
P
lakestore write t.big bigbad.jsonl; echo rc $?
lakestore read t.big --count
printf 'id,s\n1,""\n2,\n3,NULL\n4,\\N\n5," x "\n' > q.csv
lakestore write t.big q.csv; lakestore read t.big --where "id<6" --format jsonl
printf 'id,s,d\n1,a,2026-01-02 03:04:05+02\n' > n.csv
lakestore write --yes --create --key id t.newcsv n.csv; lakestore describe t.newcsv | tail -5
""")
