import pytest

from toolkit.masking.names import is_secret, looks_random


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apikey",
        "openaiApiKey",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "HF_TOKEN",
        "TOKEN_2",
        "token",
        "AZURE_STORAGE_KEY",
        "ssh_private_key",
        "WANDB_API_KEY",
        "db_password",
        "PGPASSWORD",
        "password_db",
        "PASSPHRASE",
        "creds",
        "accountKey",
        "auth_tokens",
        "authorization",
        "cookie",
        "db_pass",
        "github_pat",
        "jwt",
        "clientSecret",
        "mlflow.tracking.password",
        "encryption-key",
    ],
)
def test_every_value_under_a_secrets_name_is_one(name: str) -> None:
    assert is_secret(name, "tiger")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keyboard", "us"),
        ("monkey", "macaque"),
        ("max_tokens", "512"),
        ("tokens_per_second", "18321.5"),
        ("tokenizer", "bert-base-uncased"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("eos_token_id", "2"),
        ("pad_token", "[PAD]"),
        ("num_key_value_heads", "8"),
        ("key_padding_mask", "None"),
        ("key_dim", "64"),
        ("sort_key", "succeeded"),
        ("secret_sharer_dataset", "canary-10k"),
        ("n_pass", "2"),
        ("authors", "Vaswani et al."),
        ("public_key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGr0a8e1"),
        ("kms_key_id", "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"),
        ("TOOLKIT_JOB_SECRET_FILE", "/run/secrets/job"),
        ("PWD", "/opt/ml/code"),
        ("OLDPWD", "/"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/secrets/google.json"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-XXXXdkSFcR/agent.20"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"),
        ("learning_rate", "3e-4"),
        ("use_auth_token", "True"),
        ("api_key", "${API_KEY}"),
        ("password", None),
        ("dsn", "TrainDB"),
        ("api_key_env", "OPENAI_API_KEY"),
        ("secret", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-AbCdEf"),
        ("credentials", "op://train/registry/password"),
        ("api_key", "env:OPENAI_API_KEY"),
        ("authorization", "Bearer ${TOKEN}"),
        ("cache_key", "609dfcfb60cc0dbf07b27eb7b2798d7b"),
        ("predicted_token", "London"),
        ("token", "\u0120hello"),
        ("token", 512),
    ],
)
def test_words_of_models_and_values_that_stand_for_nothing_are_no_secrets(name: str, value: object) -> None:
    assert not is_secret(name, value)


def test_a_dsn_with_an_address_is_a_secret_and_the_name_of_a_data_source_is_none() -> None:
    assert is_secret("SENTRY_DSN", "https://601cce1a75d7b62819d0edf2a11f04e1@o1.ingest.sentry.io/42")
    assert is_secret("dsn", "server=db;pwd=tiger")
    assert not is_secret("dsn", "ProdWarehouse")


@pytest.mark.parametrize("value", ["b7f1c0de77aa41d09b3e", "wJalrXUtnFEMIK7MDENGbPxRfiCY"])
def test_under_a_name_that_may_be_a_secrets_only_random_characters_are_one(value: str) -> None:
    assert is_secret("key", value)
    assert looks_random(value)
    assert not is_secret("key", "image")
    assert not is_secret("key", "TransformerEncoderLayer.forward")


def test_a_list_under_the_name_of_a_secret_is_one_unless_it_is_empty() -> None:
    assert is_secret("password", ["hunter2"])
    assert not is_secret("password", [])
    assert not is_secret("epochs", ["hunter2"])


def test_a_word_of_the_kind_may_follow_that_of_the_secret() -> None:
    assert is_secret("DB_PASSWORD_VALUE", "hunter2")
    assert is_secret("api_key_str", "k3yk3yk3y")


def test_the_names_of_secrets_are_no_secrets() -> None:
    assert not is_secret("pull_secrets", "registry")
    assert is_secret("secrets", "hunter2")
