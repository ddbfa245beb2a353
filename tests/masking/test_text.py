"""Secrets in free text are masked. The shapes and ordinary lines in tests/data/secrets were written before the code."""

import ast
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.log import masked
from toolkit.masking import shapes
from toolkit.masking.text import MASK, mask, mask_arguments

DATA = Path(__file__).parents[1] / "data/secrets"
PACKAGE = Path(__file__).parents[2] / "toolkit"


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def mask_row(row: dict[str, str], text: str) -> str:
    """Return *text* as we write it: in a line, or as the value of a hyperparameter or variable."""
    return mask(text) if row["kind"] == "text" else mask(str(masked({row["name"]: text})[row["name"]]))


def test_at_least_nine_of_ten_secrets_are_masked() -> None:
    missed = []
    cases = rows("secrets.jsonl")
    for row in cases:
        # The secret stands between « and »; a mark inside keeps scanners of repositories from taking it for a real one.
        marked = row.get("text", row.get("value", "")).replace("⁞", "")
        secret = marked[marked.index("«") + 1 : marked.index("»")]

        text = mask_row(row, marked.replace("«", "").replace("»", ""))

        if any(part in text for part in secret.split("\n")):
            missed.append(text)

    assert len(cases) == 80
    assert len(missed) <= 8, missed


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        ("t.py --SECRET short --lr 1", f"t.py --SECRET {MASK} --lr 1"),
        ("t.py --password -x --lr 1", f"t.py --password {MASK} --lr 1"),
        ("t.py --password --lr 1", "t.py --password --lr 1"),
        ("t.py --max_tokens 512 --lr 1", "t.py --max_tokens 512 --lr 1"),
        ("t.py -x --pw=ab api_key", "t.py -x --pw=ab api_key"),  # One token: mask's.
        ("t.py --api_key", "t.py --api_key"),
    ],
)
def test_what_stands_behind_an_option_of_a_secrets_name_is_masked_however_short(argv: str, masked: str) -> None:
    assert " ".join(mask_arguments(argv.split())) == masked


def test_at_most_two_of_two_hundred_ordinary_values_are_masked() -> None:
    cases = [(row, row.get("text", row.get("value", ""))) for row in rows("ordinary.jsonl")]

    changed = [text for row, text in cases if mask_row(row, text) != text]

    assert len(cases) == 200
    assert len(changed) <= 2, changed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.py --api_key=X1 --epochs 3", f"train.py --api_key={MASK} --epochs 3"),
        ("['train.py', '--password', 'tiger', '--lr', '1']", f"['train.py', '--password', '{MASK}', '--lr', '1']"),
        ("--db-password 'two words' --lr 1", f"--db-password '{MASK}' --lr 1"),
        ("--password 'it'\"'\"'s two' --lr 1", f"--password '{MASK}' --lr 1"),
        ("--password='it'\\''s two' --lr 1", f"--password='{MASK}' --lr 1"),
        ('{"api_key": "a\\"b", "lr": 1}', f'{{"api_key": "{MASK}", "lr": 1}}'),
        ('{"value": "tiger", "name": "DB_PASSWORD"}', f'{{"value": "{MASK}", "name": "DB_PASSWORD"}}'),
        ("Env(name='API_KEY', value='tiger')", f"Env(name='API_KEY', value='{MASK}')"),
        ("https://u:p@ss@h/x", f"https://u:{MASK}@h/x"),
        ("at line 2:\\nghp_" + "a1B2" * 9, f"at line 2:\\n{MASK}"),
        ("auth_tokens: ['a', 'b'] lr: 1", f"auth_tokens: {MASK} lr: 1"),
        ("client_secret = tiger; x", f"client_secret = {MASK}; x"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n", f"-----BEGIN PRIVATE KEY-----{MASK}"),
        ("password = getpass.getpass()", "password = getpass.getpass()"),
        ("Client(hf_token=token, secret=secret)", "Client(hf_token=token, secret=secret)"),
        ("usage: train.py --api-key API_KEY", "usage: train.py --api-key API_KEY"),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("credentials: ~/.aws/credentials, cookie: ./jar", "credentials: ~/.aws/credentials, cookie: ./jar"),
        (
            "\x1b[36mlr\x1b[0m=\x1b[35m3\x1b[0m key=\x1b[1mZq7Rt9Lm4pWv2Ab1\x1b[0m",
            f"\x1b[36mlr\x1b[0m=\x1b[35m3\x1b[0m key=\x1b[1m{MASK}\x1b[0m",
        ),
        ("wandb login failed: no network; hf_token needed", "wandb login failed: no network; hf_token needed"),
        ("docker run -p 8080:80 image", "docker run -p 8080:80 image"),
        ("docker run -p 127.0.0.1:80:80/tcp image", "docker run -p 127.0.0.1:80:80/tcp image"),
        # A value of more characters than the decision needs is masked to its end.
        ("token=" + "tiger5" * 200 + ", lr=1", f"token={MASK}, lr=1"),
        ("value=" + "tiger5" * 100 + ", name=API_KEY", f"value={MASK}, name=API_KEY"),
    ],
)
def test_the_value_is_masked_and_what_stands_around_it_stays(text: str, expected: str) -> None:
    assert mask(text) == expected


@pytest.mark.parametrize(
    "template",
    [
        # A prefix before the quote.
        "password=b'«»'",
        "password=r'«»'",
        "password=u'«»'",
        'password=f"«»"',
        "password: Rb'«»'",
        "password=$'«»'",
        'password="""«»"""',
        "password='''«»'''",
        "db_password: !!str «»",
        "db_password: !!str '«»'",
        "password: !!python/unicode '«»'",
        "password: &pw «»",
        "password=SecretStr('«»')",
        "password=bytes(b'«»')",
        'api_key=L\\"«»\\"',
        'password=@"«»";',
        '"password=""«"""'.replace("«", "«»"),
        "password = ''«»''",
        "config: {'password': b'«»', 'lr': 1}",
        "--password b'«»' --lr 1",
        "password: |\n  «»\nlr: 1",
        "  password: >-\n    «»\n  lr: 1",
        # Programs and elements.
        "curl -u user:«» https://nexus.acme.example",
        "curl --user 'user:«»' https://nexus.acme.example",
        "curl -fsSL --proxy-user=me:«» -O https://x",
        "['curl', '-u', 'user:«»', 'https://x']",
        "mysql -u root -p«» features",
        "mysqldump --port=3306 -p'«»' features",
        "sshpass -p «» ssh host",
        "docker login -u me -p «» registry.acme.example",
        "redis-cli -h cache -a «» ping",
        "openssl rsa -passin pass:«» -in key.pem",
        "<password>«»</password>",
        "<db:password type='text'>«»</db:password>",
        "&lt;password&gt;«»&lt;/password&gt;",
        "<password><![CDATA[«»]]></password>",
        "<key>apiKey</key> <string>«»</string>",
        "<property><name>db.password</name><value>«»</value></property>",
        '<add key="DbPassword" value="«»"/>',
        "postgresql://ml:«»/x#y?z@db.internal:5432/runs",
        "mongodb://svc:«»?@cluster0.mongodb.net/?retryWrites=true",
        "amqp://u:«»#1@mq/vhost, retrying",
        "https://user:12«»/#@host/simple",
        "password: «»",
        "Password = «»;",
        "password=«»",
        "Authorization: Bearer abc«»",
        "next password: «»1",
        # Code in a traceback, a shell's trace and a Dockerfile, a terminal's colours.
        "    os.environ['COMET_API_KEY'] = '«»'",
        'os.environ.setdefault("HF_TOKEN", "«»Zq7Rt9Lm4pWv2")',
        "ENV HF_TOKEN «»Zq7Rt9Lm4pWv2",
        "+ aws configure set aws_secret_access_key «»Zq7Rt9Lm4pWv2",
        "rclone config create s3 secret_access_key «»Zq7Rt9Lm4pWv2",
        "+ wandb login --relogin «»0123456789abcdef",
        "\x1b[36mapi_key\x1b[0m=\x1b[35m«»\x1b[0m",
        "api_key=\x1b[1m\x1b[32m'«»'\x1b[0m",
    ],
)
def test_a_value_is_masked_whatever_opens_it(template: str) -> None:
    for secret in ("tiger9-tail", "Zk9vvQ1"):
        text = template.replace("«»", secret)

        masked = mask(text)

        assert MASK in masked
        assert secret not in masked
        assert secret[-3:] not in masked
        for around in (" --lr 1", "https://x", "features", "@db.internal:5432/runs", "lr: 1", "</password>"):
            assert (around in masked) == (around in text)


# The prefix and the form of a service's token; the rest is filled up, so that no scanner takes these for real ones.
LETTERS = "a1B2c3D4e5F6g7H8i9J0" * 8
HEX = "0a1b2c3d4e5f" * 16


@pytest.mark.parametrize(
    "secret",
    [
        "whsec_" + LETTERS[:32],
        "https://discord.com/api/webhooks/1234567890123456789/" + LETTERS[:68],
        "https://ptb.discordapp.com/api/v10/webhooks/1234567890123456789/" + LETTERS[:68],
        "NRAK-" + LETTERS.upper()[:27],
        "ntn_" + LETTERS[:46],
        "secret_" + LETTERS[:43],
        "pat" + LETTERS[:14] + "." + HEX[:64],
        "tvly-" + LETTERS[:32],
        "tvly-dev-" + LETTERS[:32],
        "pcsk_" + LETTERS[:6] + "_" + LETTERS[:60],
        "sk_test_" + LETTERS[:24],
        "figd_" + LETTERS[:40],
        "sntryu_" + HEX[:64],
        "sbp_" + HEX[:40],
        "sb_secret_" + LETTERS[:31],
        "pscale_tkn_" + LETTERS[:43],
        "dp.pt." + LETTERS[:43],
        "bkua_" + HEX[:40],
        "ATATT3" + LETTERS[:120],
        "pat-na1-01234567-89ab-cdef-0123-456789abcdef",
        "rubygems_" + HEX[:48],
        "pnu_" + LETTERS[:36],
        "rpa_" + LETTERS.upper()[:40],
        "tskey-auth-" + LETTERS[:17] + "-" + LETTERS[:32],
        "KGAT_" + HEX[:32],
        "tgp_v1_" + LETTERS[:43],
        "csk-" + LETTERS.lower()[:48],
        "fw_" + LETTERS[:24],
        "fc-" + HEX[:32],
        "jina_" + LETTERS[:60],
        "sk_" + HEX[:48],
        "sk-" + HEX[:32],
        "ABSK" + LETTERS[:120] + "=",
        "1//0" + LETTERS[:60],
        "glpat-" + LETTERS[:27] + ".01." + LETTERS.lower()[:9],
        "ghs_" + LETTERS[:80],
    ],
)
def test_tokens_of_services_are_masked_under_no_name(secret: str) -> None:
    assert mask(f"using {secret} now") == f"using {MASK} now"
    assert mask(f"at 1:\\n{secret}'") == f"at 1:\\n{MASK}'"


def test_at_most_two_of_the_lines_that_logs_and_tools_print_are_masked() -> None:
    lines = [line.replace("\\n", "\n") for line in (DATA / "ordinary.txt").read_text("utf-8").splitlines()]

    changed = [line for line in lines if mask(line) != line]

    assert len(lines) >= 224
    assert len(changed) <= 2, changed


def messages() -> Iterator[str]:
    """Yield each text in our own code that a person may read, "X1" in place of what it takes up."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        skipped = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        skipped |= {id(part) for node in joined for part in ast.walk(node) if part is not node}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X1" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield node.value


def test_no_message_of_our_own_is_masked() -> None:
    # One text: a call for each message takes ten times as long.
    all_text = "\n\0\n".join(text for text in messages() if " " in text)

    changed = [
        (ours, masked)
        for ours, masked in zip(all_text.split("\0"), mask(all_text).split("\0"), strict=True)
        if ours != masked
    ]

    assert all_text.count("\0") > 2000
    assert changed == []


def units() -> list[str]:
    """Return texts that, repeated, make patterns search long for nothing."""
    hints = ["a", "a-", "token=", "--token ", '"password": "', "key=[", 'key="', "name: token, value: {", "https://a:"]
    hints += [
        '{"name": "API_KEY", "value": ',
        "value: a, name: ",
        "bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "\\",
        "login a ",
        "curl -u a:",
        "-u a:b ",
        "curl ",
        "mysql -p",
        "-pa ",
        "<password>",
        "<password ",
        "<key>password</key>",
        "&lt;",
        "https://a:b/",
        "https://a:@",
        "password: !!str ",
        "password: |\n a\n",
        'password="""',
        "arn:aws:s:e:1:secret:",
        "next token: ",
        "cookie: a",
        # An undecided value within each other.
        "key=",
        "key: |\n ",
        "token value:[",
        "token value:[{},",
        "docker -p ab ",
        "token a",
        "token Zq7Rt9Lm4pWv2Ab1 ",
        "'token', '",
        "wandb login -a ",
        "\x1b[1m",
        "\x1b[1mtoken=",
    ]
    return hints + [hint for shape in shapes.all_shapes() for hint in shape.hints[:1]]


def test_a_long_line_of_anything_is_masked_in_the_time_that_its_length_needs() -> None:
    begun = time.process_time()

    for unit in units():
        mask(unit * (65536 // len(unit)))
    mask("redis-cli " + " -a ab" * 10_000)

    # 4 s on a slow machine for 120 texts; a search that goes back over the text takes minutes.
    assert time.process_time() - begun < 30


def test_every_shape_says_where_its_pattern_is_from_and_is_a_pattern() -> None:
    document = json.loads(shapes.FILE.read_text("utf-8"))

    assert {source["name"]: source["licence"] for source in document["sources"]} == {
        "detect-secrets": "Apache-2.0",
        "toolkit": "Apache-2.0",
    }
    for shape in shapes.all_shapes():
        assert shape.source in {"detect-secrets", "toolkit"}
        assert all(hint == hint.lower() for hint in shape.hints)
        assert not list(shapes.find_shapes(f"nothing here but {shape.hints[0]}", f"nothing here but {shape.hints[0]}"))
