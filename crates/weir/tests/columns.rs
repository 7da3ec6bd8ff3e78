//! Columns over HTTP, from a client to the outputs of a running agent.
