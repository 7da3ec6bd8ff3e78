//! Numbers of things.

/// The digits in groups of three: `12,345`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number with its unit, which is given for several: `12,345 messages`, `1 message`.
pub fn counted(number: u64, unit: &str) -> String {
    format!("{} {}", grouped(number), unit_of(number, unit))
}

/// The unit, which is given for several, of this number of things.
pub fn unit_of(number: u64, unit: &str) -> String {
    match number {
        1 => singular(unit),
        _ => unit.to_owned(),
    }
}

/// Of two nouns with `and`, one is meant: `packets and messages` is `packet or message`.
fn singular(unit: &str) -> String {
    let each: Vec<String> = unit.split(" and ").map(singular_noun).collect();
    each.join(" or ")
}

fn singular_noun(noun: &str) -> String {
    let without = |ending: &str| noun.strip_suffix(ending);
    let two_letters = ["sses", "shes", "ches", "iases"];
    if noun.ends_with("series") {
        noun.to_owned()
    } else if let Some(stem) = without("ies") {
        format!("{stem}y")
    } else if two_letters.iter().any(|ending| noun.ends_with(ending)) {
        without("es").unwrap_or(noun).to_owned()
    } else {
        without("s").unwrap_or(noun).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        for (unit, one) in [
            ("messages", "1 message"),
            ("series", "1 series"),
            ("overflow series", "1 overflow series"),
            ("flushes", "1 flush"),
            ("batches", "1 batch"),
            ("processes", "1 process"),
            ("aliases", "1 alias"),
            ("service checks", "1 service check"),
            ("entries", "1 entry"),
            ("times", "1 time"),
            ("bytes", "1 byte"),
            ("packets and messages", "1 packet or message"),
        ] {
            assert_eq!(counted(1, unit), one);
            assert_eq!(counted(0, unit), format!("0 {unit}"));
            assert_eq!(counted(1234, unit), format!("1,234 {unit}"));
        }
    }
}
