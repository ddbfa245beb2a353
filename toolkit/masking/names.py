"""Decides whether a value is a secret, by the last word of its name and by the form of the value.

Three answers for a name: "always" (password, api_key, HF_TOKEN), "random" (key, sig, token_path: only a value that
looks like random characters) and "never". Words that models and data share with secrets (max_tokens, sort_key,
pad_token) are "never" or "random".
"""

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

Strength = Literal["always", "random", "never"]

LEAST_RANDOM = 16
# A number under token or key is a setting (`max_token: 512`) unless it is this long.
LEAST_NUMBER = 8


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A value under a name with such an ending is always a secret.
_SECRET = _set(
    "secret secrets password passwords passwd passwds pwd pwds pw passphrase passphrases passcode passcodes passwort "
    "kennwort credential credentials creds cred authorization cookie cookies jwt jwts dsn dsns bearer apikey apikeys "
    "accesskey accesskeys secretkey privatekey accountkey sharedkey"
)
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "authtoken", "accesstoken", "csrftoken", "apitoken")
# Under these names a number is a password, too; under others it is a setting.
_ANY_NUMBER = ("password", "passwd", "pwd", "passphrase", "passcode", "secret", "pass")
# "key" and "keys" name a secret after one of these.
_KEYS = _set(
    "api access secret private account auth authentication encryption decryption encrypt decrypt signing sign storage "
    "shared master session ssh gpg pgp ssl tls rsa dsa ecdsa hmac deploy service subscription app application client "
    "consumer function admin user azure openai anthropic claude wandb comet neptune hf huggingface cohere google gcp "
    "gemini aws mistral groq together langchain langsmith pinecone kaggle sas stripe twilio sendgrid mailgun datadog "
    "dd sentry newrelic github gitlab slack databricks snowflake mlflow replicate nvidia ngc serper tavily server"
)
# "tokens" name secrets after one of these; "token" names one unless a word of models precedes it.
_TOKENS = _set(
    "auth authentication access refresh api id session bearer secret hf huggingface github gitlab slack bot security "
    "csrf deploy personal registry oauth user service login vault npm pypi"
)
_NO_TOKEN = _set(
    "pad eos bos unk mask cls sep special max min num n per image video audio vision speech end start begin stop "
    "decoder encoder first last next prev previous prompt new additional extra default fake dummy boi eoi bot eot eod "
    "sot soi sequence text word sub subword byte char added blank newline space noise time class target source label "
    "separator every each single control reserved padding unknown masking forced suppress language lang task "
    "predicted predict generated output input sampled gold answer correct draft accepted rejected top request"
)
# "pass" names a password after one of these; n_pass and first_pass do not.
_PASSES = _set(
    "db database user smtp mail email imap ftp sftp ssh sudo root admin redis mysql mariadb postgres postgresql pg "
    "mongo mongodb rabbitmq amqp proxy http https login registry docker git vpn ldap my keystore cert basic auth sql "
    "pgsql service svc es elastic kafka broker"
)
_WEAK = _set("key keys token tokens auth sig signature signatures hmac private session sessionid sid webhook")
# Suffixes of a secret's name: password_db, api_key_openai, token_prod, secret_value.
_AFTER = _set(
    "value values text string str plain plaintext raw base64 b64 json env prod production dev staging test old new "
    "backup main default primary secondary db database user admin root openai anthropic aws azure gcp google hf "
    "github gitlab slack wandb mlflow"
)
_OTHER_KEYS = _set("public kms kv value pub host cache config content dedup hash idempotency lock row partition")
# The names of secrets, as Kubernetes lists them.
_OTHER_SECRETS = _set("pull")
_PLACEHOLDER = (
    r"(?i:true|false|none|null|nil|undefined|yes|no|on|off|unset|not|hidden|masked|redacted|removed|xxx+|\**|\.*|-*|"
    r"<[^<>]*>|</?\w+>|\$\{[^}]*\}|\$\([^)]*\)|\$\w+|\{\{[^}]*\}\}|\{\w*\}|%\(?\w*\)?s?|%\w+%|\[[A-Z_]{2,12}\]|"
    # A type, or what is wrong with the value.
    r"str|bytes|int|bool|float|string|any|object|secretstr|(?:optional|union)\[.*|required|missing|invalid|expired|"
    r"empty|optional|incorrect|expected|"
    # Where the value is: an ARN, a variable, a store of secrets.
    r"arn:[a-z0-9-]+:[a-z0-9-]+:\S*|env:\w+|op://\S+|(?:ssm|vault|secretsmanager|file):/\S+)"
)
# The name of a variable that holds the value: `api_key_env=OPENAI_API_KEY`.
_VARIABLE = r"[A-Z][A-Z0-9]{1,30}(?:_[A-Z0-9]{1,30}){1,8}"
# What tokenizers write for a space, a line end and the begin of a word.
_OF_TOKENIZERS = "\u0120\u010a\u2581"
_SCHEME = r"(?i:bearer|basic|token|apikey|negotiate|digest)(?:[ \t]+|$)"
_NUMBER = r"[+-]?[0-9][0-9_,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[kKmMbBgGtT%]?"
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_RUN = r"[A-Za-z0-9+/=]{16,512}"
_CASES = r"[a-z]+|[A-Z]+|[0-9]+"


# (the last word of a name, the words before it that this row is for, None: any; the strength): the first row that fits
# decides.
_BY_LAST_WORDS: tuple[tuple[tuple[str, ...], frozenset[str] | None, Strength], ...] = (
    (("key", "keys"), _OTHER_KEYS, "never"),
    (("key", "keys"), _KEYS, "always"),
    (("token",), _NO_TOKEN, "never"),
    (("token",), None, "always"),
    (("tokens",), _TOKENS, "always"),
    (("tokens",), None, "never"),
    (("pass",), _PASSES, "always"),
    (("pat",), frozenset(("",)), "random"),
    (("pat",), None, "always"),
)


@cache
def compiled(pattern: str) -> "re.Pattern[str]":
    """Return *pattern* compiled at its first use: the start of `train` needs few of them."""
    return re.compile(pattern)


def words(name: str) -> list[str]:
    """Return the words of *name* in lower case, numbers left out: "wandbApiKey_2" gives wandb, api, key."""
    return [word.lower() for word in _WORD.findall(name)]


@lru_cache(maxsize=2048)
def strength(name: str) -> Strength:
    """Return which values under *name* are secrets: "always" every one, "random" those that look random."""
    parts = words(name[:200])
    suspicious = any(_is_word_of_secrets(part) for part in parts)
    if not suspicious:
        return "never"
    if parts[-1] in ("id", "ids") and "access" in parts and "key" in parts:
        return "always"  # AWS_ACCESS_KEY_ID
    while len(parts) > 1 and parts[-1] in _AFTER and any(_is_word_of_secrets(part) for part in parts[:-1]):
        parts.pop()
    last, previous = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last == "secrets" and previous in _OTHER_SECRETS:
        return "never"
    if last in _SECRET or last.endswith(_ENDINGS):
        return "always"
    return next(
        (
            row_strength
            for last_words, words_before, row_strength in _BY_LAST_WORDS
            if last in last_words and (words_before is None or previous in words_before)
        ),
        "random",
    )


def _is_path(name: str, text: str) -> bool:
    """PWD, OLDPWD, GOOGLE_APPLICATION_CREDENTIALS."""
    return text.startswith(("/", "~/", "./")) and name.upper().endswith(("PWD", "CREDENTIALS", "CREDS", "COOKIE"))


def _is_placeholder(_name: str, text: str) -> bool:
    return compiled(_PLACEHOLDER).fullmatch(compiled(rf"^{_SCHEME}").sub("", text)) is not None


def _is_token_of_text(_name: str, text: str) -> bool:
    return any(character in text for character in _OF_TOKENIZERS)


def _is_variable(_name: str, text: str) -> bool:
    return compiled(_VARIABLE).fullmatch(text) is not None and strength(text) == "always"


def _is_data_source(name: str, text: str) -> bool:
    """The name of a data source, without credentials."""
    return words(name)[-1:] in (["dsn"], ["dsns"]) and not any(character in text for character in ":=@")


# (name, text) -> True if *text* is none of the secrets that *name* stands for.
_NO_SECRETS: tuple[Callable[[str, str], bool], ...] = (
    _is_path,
    _is_placeholder,
    _is_token_of_text,
    _is_variable,
    _is_data_source,
)


def is_secret(name: str, value: object) -> bool:
    """True if *value* must not be shown under *name* (api_key=..., HF_TOKEN=...; not max_tokens=512)."""
    if value is None or isinstance(value, bool):
        return False
    kind = strength(name)
    if kind == "never":
        return False
    if not isinstance(value, str | int | float):
        return kind == "always" and bool(value)
    text = str(value).strip()
    if any(is_no_secret(name, text) for is_no_secret in _NO_SECRETS):
        return False
    if compiled(_NUMBER).fullmatch(text) and sum(character.isdigit() for character in text) < LEAST_NUMBER:
        return kind == "always" and any(part.endswith(_ANY_NUMBER) for part in words(name))
    return kind == "always" or looks_random(text)


def looks_random(text: str) -> bool:
    """True if *text* holds 16 characters in a row that change often between small and capital letters and digits."""
    if compiled(_UUID).fullmatch(text):
        return False
    text = text[:4096]
    if text.startswith("/"):
        text = text.replace("/", " ")  # A path, rather than base64.
    for run in compiled(_RUN).findall(text):
        cases = compiled(_CASES).findall(run)
        if len(cases) > 1 and len(cases) - 1 >= len(run) * 0.25:
            return True
    return False


def _is_word_of_secrets(word: str) -> bool:
    return word in _SECRET or word in _WEAK or word in ("pass", "pat") or word.endswith(_ENDINGS)
