"""The contract: keys and formats of all that lies in the store, for whoever writes or reads it."""
