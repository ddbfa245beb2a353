from toolkit.job.documents.parameters import split


def test_the_scripts_hyperparameters_are_set_apart_from_those_of_its_framework() -> None:
    values = {"lr": 0.1, "sagemaker_mpi_enabled": True, "sagemaker_program": "train.py"}

    assert split(values) == ({"lr": 0.1}, {"sagemaker_mpi_enabled": True})
