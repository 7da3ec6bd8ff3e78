//! What is allowed and probably not meant.
