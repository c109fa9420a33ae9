"""The brokers as the gateway knows them: which there are, which are up, and how they are reached."""
