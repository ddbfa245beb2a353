"""The documents that describe a job, in SageMaker's form, which every platform's jobs take."""
