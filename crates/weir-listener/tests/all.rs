//! Sockets of every kind.

mod binding;
mod datagrams;
mod load;
mod streams;
mod support;
