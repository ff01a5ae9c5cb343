//! Passwords: Argon2id with 19 MiB and two passes, computed away from the runtime's threads.
//!
//! At most [`AT_ONCE`] hashes are computed at a time. The permit is owned by the blocking task: if the
//! request goes away, the computation still counts until it ends, so clients that hang up cannot start
//! more of them.

mod weakness;

use std::sync::Arc;

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use tokio::sync::Semaphore;

pub use self::weakness::MOST;
use self::weakness::weakness;
use crate::error::AppError;

/// 2 × 19 MiB are what trying passwords may cost.
const AT_ONCE: usize = 2;

#[derive(Debug)]
pub struct Passwords {
    turns: Arc<Semaphore>,
    /// Compared with when the name is unknown, so that the answer takes as long.
    nobody: String,
}

impl Passwords {
    pub fn new() -> anyhow::Result<Self> {
        let nobody = hash("a password that nobody has")
            .map_err(|error| anyhow::anyhow!("cannot hash a password: {error}"))?;
        Ok(Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            nobody,
        })
    }

    /// Whether `password` is the one of `known`. Without a known hash the answer is no, after the same
    /// work.
    pub async fn verify(&self, password: String, known: Option<String>) -> Result<bool, AppError> {
        let exists = known.is_some();
        let known = known.unwrap_or_else(|| self.nobody.clone());
        let same = self
            .compute(move || {
                let parsed = PasswordHash::new(&known).ok()?;
                let verified = Argon2::default().verify_password(password.as_bytes(), &parsed);
                Some(verified.is_ok())
            })
            .await?;
        Ok(exists && same == Some(true))
    }

    pub async fn hash(&self, password: String) -> Result<String, AppError> {
        let hashed = self.compute(move || hash(&password).ok()).await?;
        hashed.ok_or(AppError::Internal("a password cannot be hashed"))
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AppError> {
        let closed = |_| AppError::Internal("the console is stopping");
        let turn = self.turns.clone().acquire_owned().await.map_err(closed)?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await
            .map_err(|_| AppError::Internal("a password computation failed"))
    }
}

/// Why a new password, which was typed twice, is not taken.
pub fn problem(password: &str, again: &str, name: &str) -> Option<String> {
    match password == again {
        true => weakness(password, name),
        false => Some("The two passwords differ.".into()),
    }
}

fn hash(password: &str) -> Result<String, argon2::password_hash::Error> {
    Ok(Argon2::default()
        .hash_password(password.as_bytes())?
        .to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_of_a_known_person_is_accepted() {
        let passwords = Passwords::new().unwrap();
        let hash = passwords.hash("correct horse".into()).await.unwrap();
        assert!(hash.starts_with("$argon2id$"), "{hash}");
        let verify = async |text: &str, known: Option<String>| {
            passwords.verify(text.into(), known).await.unwrap()
        };
        assert!(verify("correct horse", Some(hash.clone())).await);
        assert!(!verify("wrong horse", Some(hash)).await);
        assert!(!verify("a password that nobody has", None).await);
    }
}
