"""The language-model wing: it shares config, comm, telemetry and seeds with the federated half."""
