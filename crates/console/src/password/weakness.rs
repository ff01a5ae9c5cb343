//! Why a new password is not good enough.
//!
//! Programs that guess passwords try words that many people use, names, sequences and repetitions first. So each such piece counts as
//! one character, and enough characters must be left.

/// In characters.
pub const LEAST: usize = 12;
/// In bytes.
pub const MOST: usize = 256;

/// How many characters must be left, with each piece that is guessed first as one.
const ENOUGH: usize = 8;

/// Words of the lists of passwords that are tried first, in lower case, and words of this product.
const COMMON: &str = "password passwort passwords passwd passphrase kennwort parola contrasena motdepasse letmein welcome willkommen \
    bienvenue changeme changethis default admin administrator administrateur root superuser sysadmin operator guest test testing tester \
    demo sample secret geheim private security secure access login signin logon user username account master service server \
    system network internet computer laptop windows linux ubuntu debian oracle postgres database docker google facebook microsoft \
    company office manager temp temporary hello hallo iloveyou loveyou lovely lover love forever whatever nothing nobody \
    trustno1 freedom monkey dragon tigger tiger eagle panther butterfly flower sunshine rainbow summer winter spring autumn sommer \
    herbst january february march april june july august september october november december monday tuesday wednesday \
    thursday friday saturday sunday football fussball soccer baseball basketball hockey tennis golf liverpool arsenal chelsea \
    manchester united barcelona madrid juventus bayern schalke dallas cowboys yankees lakers ferrari porsche mercedes harley \
    superman batman spiderman starwars pokemon minecraft naruto matrix gandalf metallica nirvana slipknot masterofpuppets \
    shadow killer hunter ranger ginger cookie chocolate cheese pepper banana orange purple princess prince angel babygirl \
    michael michelle jennifer jessica charlie jordan daniel thomas robert andrew joshua matthew anthony william nicole ashley \
    samantha amanda alexander christopher elizabeth victoria unbelievable correcthorsebatterystaple fleet console ingest";

/// Rows of keyboards, the alphabet, and patterns of keys.
const ROWS: [&str; 12] = [
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "qwertyuiop[]",
    "qwertzuiopü",
    "azertyuiop",
    "asdfghjkl;'",
    "zxcvbnm,./",
    "yxcvbnm",
    "!@#$%^&*()_+",
    "!\"§$%&/()=?",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik",
    "qazwsxedcrfvtgbyhnujm",
];

/// Why `password` is refused, as a sentence for its person, whose name is `name`.
pub fn weakness(password: &str, name: &str) -> Option<String> {
    if password.chars().count() < LEAST {
        return Some(format!("A password has at least {LEAST} characters."));
    }
    if password.len() > MOST {
        return Some(format!("A password has at most {MOST} bytes."));
    }
    let reason = guessable(password, &name.to_lowercase())?;
    Some(format!(
        "This password is too easy to guess: {reason}. Use several words that have nothing to do with each other."
    ))
}

fn guessable(password: &str, name: &str) -> Option<&'static str> {
    let letters: Vec<char> = password.to_lowercase().chars().collect();
    let letters: Vec<char> = letters
        .into_iter()
        .filter(|letter| !letter.is_whitespace() && !"-_.".contains(*letter))
        .collect();
    let (once, mut reason) = match period(&letters) {
        Some(period) => (&letters[..period], Some("it repeats one piece")),
        None => (&letters[..], None),
    };
    let (mut at, mut left) = (0, 0);
    while at < once.len() {
        let found = piece(&once[at..], name);
        at += found.map_or(1, |(length, _)| length);
        left += 1;
        reason = reason.or(found.map(|(_, reason)| reason));
    }
    let reason = reason.unwrap_or("it has too few letters");
    (left < ENOUGH).then_some(reason)
}

/// The longest piece at the beginning that is guessed first, and what it is.
fn piece(letters: &[char], name: &str) -> Option<(usize, &'static str)> {
    let is_part = |part: &&str| part.chars().count() > 2;
    let names = name.split(['.', '_', '@', '-']).filter(is_part);
    let found = [
        (longest(letters, names), "your name is in it"),
        (
            longest(letters, COMMON.split_whitespace()),
            "it has a word that is in many passwords",
        ),
        (
            run(letters),
            "it has a row of the keyboard, a sequence or a repeated sign",
        ),
        (year(letters), "it has a year"),
    ];
    let found = found
        .into_iter()
        .filter_map(|(length, reason)| Some((length?, reason)));
    found.max_by_key(|(length, _)| *length)
}

fn longest<'a>(letters: &[char], words: impl Iterator<Item = &'a str>) -> Option<usize> {
    words.filter_map(|word| begins(letters, word)).max()
}

/// The length of `word` if the letters begin with it, also with digits and signs for letters.
fn begins(letters: &[char], word: &str) -> Option<usize> {
    let mut length = 0;
    for letter in word.chars() {
        let given = *letters.get(length)?;
        let meant = match given {
            '0' => 'o',
            '1' | '!' => 'i',
            '3' => 'e',
            '4' | '@' => 'a',
            '5' | '$' => 's',
            '7' => 't',
            other => other,
        };
        let same = given == letter || meant == letter || (given == '1' && letter == 'l');
        length += same.then_some(1)?;
    }
    Some(length)
}

/// At least three neighbours in a row, in either direction, or three times the same.
fn run(letters: &[char]) -> Option<usize> {
    let same = letters
        .iter()
        .take_while(|letter| Some(*letter) == letters.first());
    let along = |row: Vec<char>| {
        let start = row
            .iter()
            .position(|letter| Some(letter) == letters.first())?;
        let pairs = row[start..].iter().zip(letters);
        Some(pairs.take_while(|(known, given)| known == given).count())
    };
    let rows = ROWS
        .iter()
        .flat_map(|row| [row.chars().collect(), row.chars().rev().collect()]);
    let longest = rows.filter_map(along).max().unwrap_or(0).max(same.count());
    (longest >= 3).then_some(longest)
}

fn year(letters: &[char]) -> Option<usize> {
    let year: String = letters.iter().take(4).collect();
    let number: u32 = year.parse().ok().filter(|_| year.len() == 4)?;
    (1900..2100).contains(&number).then_some(4)
}

/// The length of a piece of which the whole is a repetition. The last one may be cut off.
fn period(letters: &[char]) -> Option<usize> {
    (1..=letters.len() / 2).find(|period| {
        letters
            .iter()
            .zip(&letters[*period..])
            .all(|(one, other)| one == other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_that_are_tried_first_are_refused_with_the_reason() {
        for (weak, reason) in [
            ("short", "at least 12"),
            (&*"x1y2z".repeat(60), "at most 256"),
            ("aaaaaaaaaaaaaaaa", "repeats"),
            ("passwordpassword", "repeats"),
            ("horse horse horse", "repeats"),
            ("123456789012", "sequence"),
            ("210987654321", "sequence"),
            ("qwertyuiopas", "row of the keyboard"),
            ("1qaz2wsx3edc", "row of the keyboard"),
            ("Administrator1", "many passwords"),
            ("P@ssw0rd12345", "many passwords"),
            ("Welcome-Summer", "many passwords"),
            ("letmein1999!!!", "many passwords"),
            ("fleet console", "many passwords"),
            ("correct horse battery staple", "many passwords"),
            ("martina.klein1", "your name"),
            ("klein-klein-martina", "your name"),
        ] {
            let said = weakness(weak, "martina.klein").unwrap_or_default();
            assert!(said.contains(reason), "{weak}: {said}");
        }
    }

    #[test]
    fn other_passwords_are_accepted() {
        for strong in [
            "correct horse battery",
            "another horse battery",
            "Xk7#pQ2m!vR9",
            "bicycle lamp copper",
            "my password is a walrus",
            "planning a long voyage",
        ] {
            assert_eq!(weakness(strong, "ann"), None, "{strong}");
        }
    }
}
