"""Operations: how people and programs outside reach the ledger, over HTTP and from the command line."""
