"""Object storage (s3://, gs://, az://) and folders (file://) behind one client, obstore, imported only when used."""
