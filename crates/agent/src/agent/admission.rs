//! Registration in another cell than the one that the agent lives in.

use crate::{
    caller::Caller,
    wire::{Address, Credential, RegistrationStatus},
};

/// Where the new cell has admitted the agent.
pub(super) struct Admission {
    pub address: Address,
    pub agent_id: String,
    pub credential: Credential,
}

/// Registers at the first of these addresses that answers. The token is not sent: it belongs to the old
/// cell, and the new one knows the key.
pub(super) async fn admission(
    caller: Caller,
    addresses: Vec<Address>,
) -> Result<Admission, String> {
    let mut problem = "the cell has no address".to_owned();
    for address in addresses {
        let request = caller.request(String::new());
        let answer = match caller.register(&address, request).await {
            Ok((_, answer)) => answer,
            Err(error) => {
                problem = error.to_string();
                continue;
            }
        };
        return match answer.status {
            RegistrationStatus::Active(credential) => Ok(Admission {
                address,
                agent_id: answer.agent_id,
                credential,
            }),
            _ => Err(format!("it does not admit this agent. {}", answer.message)),
        };
    }
    Err(problem)
}
