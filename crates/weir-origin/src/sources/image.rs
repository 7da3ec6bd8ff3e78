//! Tags from the name of an image.

use crate::entity::{Cardinality, TagSet};

/// Adds `image_name`, `short_image` and `image_tag`. A digest alone gives no tag.
pub fn add(tags: &mut TagSet, image: &str) {
    let Some((name, tag)) = split(image) else {
        return;
    };
    let short = name.rsplit('/').next().unwrap_or(name);
    tags.add(Cardinality::Low, "image_name", name);
    tags.add(Cardinality::Low, "short_image", short);
    tags.add(Cardinality::Low, "image_tag", tag);
}

/// Name and tag. Without tag and digest, runtimes use the tag `latest`.
pub fn split(image: &str) -> Option<(&str, &str)> {
    let (image, digest) = match image.split_once('@') {
        Some((image, digest)) => (image, Some(digest)),
        None => (image, None),
    };
    if image.is_empty() || image.starts_with("sha256:") {
        return None;
    }
    // A colon before the last slash belongs to a registry's port.
    let last = image.rfind('/').map_or(0, |at| at + 1);
    Some(match image[last..].split_once(':') {
        Some((short, tag)) => (&image[..last + short.len()], tag),
        None if digest.is_some() => (image, ""),
        None => (image, "latest"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_their_tag() {
        for (image, expected) in [
            ("cart", Some(("cart", "latest"))),
            ("shop/cart:1.2", Some(("shop/cart", "1.2"))),
            ("reg:5000/shop/cart", Some(("reg:5000/shop/cart", "latest"))),
            ("reg:5000/cart:1@sha256:ab", Some(("reg:5000/cart", "1"))),
            ("cart@sha256:ab", Some(("cart", ""))),
            ("sha256:ab", None),
            ("", None),
        ] {
            assert_eq!(split(image), expected, "{image}");
        }
    }
}
