"""The script that calls cotune: how its code, its modules and its settings reach the processes of its trials."""
