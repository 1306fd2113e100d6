"""Windows and ordered output: rows judged by their own time, gathered, and given out when their time has come."""
